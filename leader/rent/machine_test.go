package rent

import (
	"strings"
	"testing"
)

func TestSlotText(t *testing.T) {
	slot := Slot{Kind{"r5n.large", Spot}, 3, 12}
	if got, err := ParseSlotTag(slot.String()); err != nil || got != slot {
		t.Errorf("ParseSlotTag(%q) = %v, %v", slot.String(), got, err)
	}
	for text, want := range map[string]string{
		"r5n.large/spot/3":       "want type/market/ordinal/generation",
		"/spot/3/0":              "want type/market/ordinal/generation",
		"r5n.large/cheap/3/0":    `market "cheap": want on-demand or spot`,
		"r5n.large/spot/-1/0":    "want type/market/ordinal/generation",
		"r5n.large/spot/1/0.5":   "want type/market/ordinal/generation",
		"r5n.large/spot/1/0/0/0": "want type/market/ordinal/generation",
	} {
		if _, err := ParseSlotTag(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSlotTag(%q): %v, want %q", text, err, want)
		}
	}
	for _, kind := range []Kind{{"g4dn.xlarge", OnDemand}, {"g4dn.xlarge", Spot}} {
		if got, err := ParseKind(kind.String()); err != nil || got != kind {
			t.Errorf("ParseKind(%q) = %v, %v", kind, got, err)
		}
	}
	for _, text := range []string{"", "@spot", "a@b", "a/b"} {
		if got, err := ParseKind(text); err == nil {
			t.Errorf("ParseKind(%q) = %v", text, got)
		}
	}
}
