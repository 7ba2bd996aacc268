"""From a command line to running ranks: arguments, start-up log, memory, and the ways in which a start fails."""
