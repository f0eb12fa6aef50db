package picture

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"strings"
)

// writeSVG writes a drawing as SVG, whose texts are texts. Viewers without the typeface take one that
// is about as wide.
func (d *Drawing) writeSVG(to io.Writer) error {
	w := bufio.NewWriter(to) // which keeps its first error
	fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "+
		"width=\"%.4gpt\" height=\"%.4gpt\" viewBox=\"0 0 %.2f %.2f\" "+
		"font-family=\"Go,Liberation Sans,Arial,Helvetica,sans-serif\">\n",
		d.Width, d.Height, d.Width, d.Height)
	points := func(of []Point) string {
		var b strings.Builder
		for _, p := range of {
			fmt.Fprintf(&b, "%.2f,%.2f ", p.X, d.Height-p.Y)
		}
		return strings.TrimSpace(b.String())
	}
	for _, element := range d.Elements {
		switch e := element.(type) {
		case Polygon:
			fmt.Fprintf(w, "<polygon points=\"%s\" fill=\"%s\"/>\n", points(e.Points),
				hexadecimal(e.Color))
		case Line:
			fmt.Fprintf(w, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.4g\"",
				points(e.Points), hexadecimal(e.Color), e.Width)
			if len(e.Dashes) > 0 {
				fmt.Fprintf(w, " stroke-dasharray=\"%s\"", strings.Trim(fmt.Sprint(e.Dashes), "[]"))
			}
			fmt.Fprint(w, "/>\n")
		case Text:
			_, across := e.offset()
			fmt.Fprintf(w, "<text font-size=\"%.4g\" fill=\"%s\" transform=\"translate(%.2f %.2f)",
				e.Size, hexadecimal(e.Color), e.At.X, d.Height-e.At.Y)
			if e.Turned {
				fmt.Fprint(w, " rotate(-90)")
			}
			fmt.Fprintf(w, "\" y=\"%.2f\"", -across)
			if e.XAlign == Middle {
				fmt.Fprint(w, " text-anchor=\"middle\"")
			}
			fmt.Fprint(w, ">")
			_ = xml.EscapeText(w, []byte(e.String)) // w keeps the error
			fmt.Fprint(w, "</text>\n")
		}
	}
	fmt.Fprint(w, "</svg>\n")
	return w.Flush()
}

// hexadecimal is a colour as SVG writes it.
func hexadecimal(c color.Color) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}
