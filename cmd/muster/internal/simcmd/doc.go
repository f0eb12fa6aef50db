// Package simcmd has flags of the commands of `muster sim`: how models are placed while queries arrive
// (Placement), and what changes during a run (Change).
package simcmd
