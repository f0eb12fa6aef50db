// Package figures reproduces figures of the KAIROS and RIBBON papers with the simulator, as a
// table, a picture and a text that says which claims of the papers hold here. It also draws the
// pictures of other commands.
package figures
