"""Programs around the library: the command line, the report, the explorer; nothing imports them."""
