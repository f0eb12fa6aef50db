package picture

import (
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// typeface is read when the first text is measured: most processes draw none.
var typeface = sync.OnceValue(func() *sfnt.Font {
	f, err := sfnt.Parse(goregular.TTF)
	if err != nil {
		panic(err) // it is compiled in
	}
	return f
})

// unitsPerEm is the size, in pixels of 26.6 fixed point, at which the typeface is read: fine enough
// for all sizes.
const unitsPerEm = 2048

// A glyph is the outline of a letter, and how far the next one is, in sizes of the text.
type glyph struct {
	outline []segment
	advance float64
}

// A segment of an outline goes on to the last of its points; curves have others before it.
type segment struct {
	moves  bool
	points []Point
}

// readGlyph returns the glyph of a rune; those that the typeface lacks have its box.
func readGlyph(buffer *sfnt.Buffer, r rune) glyph {
	f := typeface()
	i, err := f.GlyphIndex(buffer, r)
	if err != nil {
		return glyph{}
	}
	var g glyph
	if advance, err := f.GlyphAdvance(buffer, i, fixed.I(unitsPerEm), font.HintingNone); err == nil {
		g.advance = inEm(advance)
	}
	segments, err := f.LoadGlyph(buffer, i, fixed.I(unitsPerEm), nil)
	if err != nil {
		return g
	}
	for _, s := range segments {
		n := map[sfnt.SegmentOp]int{sfnt.SegmentOpQuadTo: 2, sfnt.SegmentOpCubeTo: 3}[s.Op]
		one := segment{moves: s.Op == sfnt.SegmentOpMoveTo}
		for _, p := range s.Args[:max(n, 1)] {
			one.points = append(one.points, Point{inEm(p.X), -inEm(p.Y)})
		}
		g.outline = append(g.outline, one)
	}
	return g
}

func inEm(x fixed.Int26_6) float64 { return float64(x) / 64 / unitsPerEm }

// Width is that of a text in the style.
func (s TextStyle) Width(text string) (width float64) {
	var buffer sfnt.Buffer
	f := typeface()
	for _, r := range text {
		i, err := f.GlyphIndex(&buffer, r)
		if err != nil {
			continue
		}
		if advance, err := f.GlyphAdvance(&buffer, i, fixed.I(unitsPerEm),
			font.HintingNone); err == nil {
			width += inEm(advance) * s.Size
		}
	}
	return width
}
