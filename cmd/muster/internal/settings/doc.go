// Package settings resolves the settings of commands. A setting is a flag that describes the
// installation rather than one call of a command. It can also be given as an environment variable
// and as a key in the config file: the flag --model-dir as MUSTER_MODEL_DIR and as `model-dir`. The
// definitions of the flags are the only list of settings; package main has them.
//
// The config file is flat. It may hold settings of several commands; a name means the same
// in all of them.
//
// Commands mark their flags with Add, and set them with Resolve. Check finds the faults of a file;
// WriteYAML and List show the settings in force without the secrets.
package settings
