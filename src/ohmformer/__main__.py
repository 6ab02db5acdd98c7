"""``python -m ohmformer`` is the command ``ohmformer``."""

from ohmformer.apps.command_line.main import app

app(prog_name="ohmformer")
