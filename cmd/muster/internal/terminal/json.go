package terminal

import (
	"encoding/json"
	"io"
)

// PrintJSON writes v to w as indented JSON. Characters that control a terminal are escaped.
func PrintJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(PlainJSON{W: w})
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
