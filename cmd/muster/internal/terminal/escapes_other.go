//go:build !windows

package terminal

// EnableEscapes does nothing: terminals understand escapes.
func EnableEscapes() {}
