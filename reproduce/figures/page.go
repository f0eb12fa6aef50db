package figures

import (
	"github.com/muster-serve/muster/api/picture"
)

// A shown is what can stand on a page.
type shown interface{ NewPanel() *picture.Panel }

// page is a picture of charts in rows of so many columns.
func page(columns int, charts ...shown) *picture.Picture {
	panels := make([]*picture.Panel, len(charts))
	widest := float64(0)
	for i, c := range charts {
		panels[i] = c.NewPanel()
		widest = max(widest, panels[i].Width)
	}
	for _, p := range panels { // so that those below each other are alike
		p.Width = widest
	}
	return picture.Page(columns, panels...)
}
