"""The commands, one file each: arguments in, exit codes out; `acache.cli._app` puts them together."""
