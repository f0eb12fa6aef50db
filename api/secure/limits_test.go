package secure

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuota: whoever comes, in whatever order, the total holds, each finds some left by those
// before, and what is given back can be had again.
func TestQuota(t *testing.T) {
	q := quota{limit: 1000}
	all := 0
	for i := range 50 {
		peer, n := fmt.Sprint(i), 0
		for q.takeUnits(peer, 1) {
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
		q.returnUnits(peer, n)
	}
	if q.held != 0 || len(q.by) != 0 {
		t.Errorf("%d are held by %v once all are given back", q.held, q.by)
	}
	if unlimited := (&quota{}); !unlimited.takeUnits("a", 1<<30) || !unlimited.takeUnits("a", 1) {
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

// TestDisplaced: a stranger's connection makes room for another, the idlest first, and not one of
// an address with fewer; a client's that has shown its name never does, but beyond the client's
// share.
func TestDisplaced(t *testing.T) {
	cs := connections{quota: quota{limit: 8}, named: true}
	age := int64(0)
	enter := func(holder string) (c, displaced *countedConn, ok bool) {
		c = &countedConn{holder: holder, connections: &cs}
		age++
		c.last.Store(age)
		displaced, ok = cs.addConnection(c)
		return c, displaced, ok
	}
	var many []*countedConn
	for range 6 { // three quarters
		c, displaced, ok := enter("many")
		if displaced != nil || !ok {
			t.Fatalf("connection %d: displaces %v, %v", len(many)+1, displaced, ok)
		}
		many = append(many, c)
	}
	single, _, _ := enter("single")
	single.last.Store(0) // it is the idlest
	many[0].noteActive()
	if _, displaced, ok := enter("many"); displaced != many[1] || !ok {
		t.Errorf("the address's own idlest makes no room: %v, %v", displaced, ok)
	}
	other, _, _ := enter("other")
	if _, displaced, ok := enter("single"); displaced != many[2] || !ok {
		t.Errorf("no connection of an address with more makes room: %v, %v", displaced, ok)
	}
	if _, displaced, ok := enter("new"); displaced != single || !ok {
		t.Errorf("the idlest makes no room for one of a new address: %v, %v", displaced, ok)
	}
	cs.noteName(other, "ads")
	for i := range 100 {
		if _, displaced, ok := enter(fmt.Sprint(i)); displaced == nil || displaced == other || !ok {
			t.Fatalf("stranger %d: displaces %v, %v; want another stranger's", i, displaced, ok)
		}
	}
	proven := 1
	for range 20 {
		c, _, ok := enter("new")
		if !ok {
			break
		}
		if cs.noteName(c, "ads"); c.client.Load() != nil {
			proven++
		}
	}
	if proven != 6 {
		t.Errorf("%d connections are one client's, want three quarters", proven)
	}
	if _, _, ok := enter("late"); !ok {
		t.Error("one client leaves no room")
	}
	if cs.doubtAll(); cs.known != 0 || cs.held != len(cs.strangers) || cs.held > 8 {
		t.Errorf("after a doubt %d are known and %d of %d strangers'", cs.known,
			len(cs.strangers), cs.held)
	}
	for _, c := range slices.Collect(maps.Keys(cs.strangers)) {
		cs.removeConnection(c)
		cs.removeConnection(c) // does nothing
	}
	if cs.held != 0 || len(cs.by) != 0 {
		t.Errorf("%d are held by %v once all are closed", cs.held, cs.by)
	}
}

// TestDisplacedWithoutNames: where anybody may query, only a connection that has been idle for long
// makes room for another.
func TestDisplacedWithoutNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := connections{quota: quota{limit: 1}}
		first := &countedConn{holder: "a", connections: &cs}
		first.noteActive()
		if _, ok := cs.addConnection(first); !ok {
			t.Fatal("the first one is refused")
		}
		second := &countedConn{holder: "b", connections: &cs}
		time.Sleep(idleEnough - time.Millisecond)
		if displaced, ok := cs.addConnection(second); ok {
			t.Errorf("a connection in use makes room: %v", displaced)
		}
		time.Sleep(time.Millisecond)
		if displaced, ok := cs.addConnection(second); displaced != first || !ok {
			t.Errorf("an idle connection makes no room: %v, %v", displaced, ok)
		}
	})
}
