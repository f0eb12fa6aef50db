package secure

import (
	"fmt"
	"net"
	"testing"
)

// TestQuota: whoever comes, in whatever order, the total holds, each finds some left by those
// before, and what is given back can be had again.
func TestQuota(t *testing.T) {
	q := quota{limit: 1000}
	all := 0
	for i := range 50 {
		peer, n := fmt.Sprint(i), 0
		for q.take(peer, 1) {
			n++
		}
		if all += n; all > 1000 {
			t.Fatalf("%d were given, want at most 1000", all)
		}
		switch {
		case i == 0 && n != 750:
			t.Errorf("the first peer got %d, want 750", n)
		case i <= 4 && n == 0:
			t.Errorf("peer %d got nothing, %d others have %d", i, i, all)
		}
	}
	for peer, n := range q.by {
		q.give(peer, n)
	}
	if q.held != 0 || len(q.by) != 0 {
		t.Errorf("%d are held by %v once all are given back", q.held, q.by)
	}
	if unlimited := (&quota{}); !unlimited.take("a", 1<<30) || !unlimited.take("a", 1) {
		t.Error("no limit is one")
	}
}

// TestHolderOf: ports and the addresses that one host has of IPv6 do not make another peer.
func TestHolderOf(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.2.3:80":              "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7":         "fe80::/64",
		"[::ffff:10.1.2.3]:80":     "::ffff:10.1.2.3",
	} {
		if got := holderOf(remote(address)); got != want {
			t.Errorf("peer of %s: %s, want %s", address, got, want)
		}
	}
	if got := holderOf(&net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 5}); got != "10.1.2.3" {
		t.Errorf("peer of an IPv4 address: %s", got)
	}
}
