"""The engines that solve for potentials, one file each."""
