package worker

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

// TestLayoutFits: the models of a fixed layout, and only they, must fit the memory; the error names
// them.
func TestLayoutFits(t *testing.T) {
	dir := t.TempDir()
	for _, model := range []string{"ncf", "wnd", "din"} {
		if _, err := zoo.Generate(t.Context(), dir, model,
			zoo.Options{Scale: zoo.Small}); err != nil {
			t.Fatal(err)
		}
	}
	layout, err := place.ParseLayout("ncf:2x1+wnd:1x1")
	if err != nil {
		t.Fatal(err)
	}
	repository, err := models.Open(dir, func(context.Context, *models.Version) (*Model, error) {
		return nil, nil
	}, models.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	bytes := int64(0)
	for _, d := range repository.OnDisk() {
		if d.Version.Model != "din" {
			bytes += d.Bytes
		}
	}
	if bytes == 0 {
		t.Fatal("the models take no memory")
	}
	w := &Worker{config: Config{Layout: layout, InMemory: true}, repository: repository}
	for _, enough := range []int64{0, bytes} { // 0: not known
		if err := w.fits(enough); err != nil {
			t.Errorf("%d bytes: %v", enough, err)
		}
	}
	err = w.fits(bytes - 1)
	if err == nil || !strings.Contains(err.Error(), "layout ncf:2x1+wnd:1x1 does not fit") ||
		!strings.Contains(err.Error(), "wnd ") || strings.Contains(err.Error(), "din ") {
		t.Errorf("a byte too few: %v", err)
	}
	w.config.InMemory = false
	if err := w.fits(1); err != nil {
		t.Errorf("emulated, or mapped from files: %v", err)
	}
}
