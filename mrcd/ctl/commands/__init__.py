"""The commands of mrcctl: arguments, options and help. Each module imports its slow parts when a command runs."""
