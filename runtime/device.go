package runtime

import "fmt"

// A DeviceError is an error of the GPU: not of the query, which another machine may well run.
type DeviceError struct {
	// Dead is whether this process can use the GPU no more.
	Dead bool
	// Memory is whether the GPU had too little memory, and Wanted how many bytes more were asked
	// for; 0: ONNX Runtime does not say. Free is how many nobody used right after; 0: not known.
	Memory       bool
	Wanted, Free uint64
	// Text is ONNX Runtime's.
	Text string
}

func (e *DeviceError) Error() string {
	if !e.Memory {
		return "the GPU failed: " + e.Text
	}
	text := "the GPU has too little memory"
	if e.Wanted > 0 {
		text += fmt.Sprintf(" for %s more", size(e.Wanted))
	}
	if e.Free > 0 {
		text += fmt.Sprintf(", %s are free", size(e.Free))
	}
	return text + ": " + e.Text
}

// size formats bytes for people.
func size(bytes uint64) string {
	const gib, mib = 1 << 30, 1 << 20
	if bytes >= gib {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/gib)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/mib)
}
