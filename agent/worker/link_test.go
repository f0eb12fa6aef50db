package worker

import (
	"fmt"
	"testing"

	"github.com/muster-serve/muster/api/control"
)

// TestForeignProfiles: what one says who does not lead is kept for when it does, but not without
// end.
func TestForeignProfiles(t *testing.T) {
	k := &followedLink{}
	for i := range 3 * maxProfiles {
		k.storeMessage(&control.LeaderMessage{Profiles: []*control.Profile{{Model: fmt.Sprint(i)}}})
	}
	if all := k.takeMessage().Profiles; len(all) != maxProfiles ||
		all[len(all)-1].Model != fmt.Sprint(3*maxProfiles-1) {
		t.Errorf("%d profiles are kept, want the last %d", len(all), maxProfiles)
	}
}
