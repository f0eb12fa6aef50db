package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestValidate(t *testing.T) {
	good := Config{Name: "a", Keys: [][]byte{testKey}}
	for _, tt := range []struct {
		what   string
		change func(*Config)
		want   []string // parts of the error; empty: no error
	}{
		{"defaults", func(*Config) {}, nil},
		{"no key on loopback", func(c *Config) { c.Keys = nil }, nil},
		{"no key on IPv6 loopback", func(c *Config) { c.Keys, c.Bind = nil, "[::1]:1" }, nil},
		{"no key elsewhere", func(c *Config) { c.Keys, c.Bind = nil, "10.1.2.3:7946" }, []string{
			"10.1.2.3:7946", "key",
		}},
		{"no key everywhere", func(c *Config) { c.Keys, c.Bind = nil, ":7946" }, []string{
			"0.0.0.0:7946", "key",
		}},
		{"insecure", func(c *Config) { c.Keys, c.Bind, c.Insecure = nil, ":7946", true }, nil},
		{"key everywhere", func(c *Config) { c.Bind = "[::]:0" }, nil},
		{"bind to a name", func(c *Config) { c.Bind = "example.com:1" }, []string{"example.com"}},
		{"bind without port", func(c *Config) { c.Bind = "127.0.0.1" }, []string{"want ip:port"}},
		{"seeds", func(c *Config) { c.Seeds = []string{"a", "a:1", "10.0.0.1", "::1", "[::1]:5"} },
			nil},
		{"all at once", func(c *Config) {
			c.Name, c.Bind, c.Advertise, c.Seeds = "", "x:y", "a:b:c", []string{"a:0", ":1", "ok"}
			c.Keys, c.Meta = [][]byte{testKey, []byte("short")}, make([]byte, MaxMeta+1)
		}, []string{
			`name ""`, `"y"`, `"a:b:c"`, `"a:0"`, `":1"`, "key 2 has 5 bytes", "513 bytes",
		}},
	} {
		c := good
		tt.change(&c)
		err := c.Validate()
		if (err == nil) != (len(tt.want) == 0) {
			t.Errorf("%s: got %v, want faults %q", tt.what, err, tt.want)
		}
		for _, want := range tt.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want %q in it", tt.what, err, want)
			}
		}
	}
}

func TestNewName(t *testing.T) {
	a, b := NewName("host"), NewName("host")
	if a == b || !strings.HasPrefix(a, "host-") {
		t.Errorf("got %q and %q, want two names of one host", a, b)
	}
}

// TestSockets runs two agents over UDP and TCP, and opens others whose addresses are in use.
func TestSockets(t *testing.T) {
	open := func(name string, seeds ...string) *Gossip {
		t.Helper()
		g, err := Open(t.Context(), Config{
			Name: name, Bind: "127.0.0.1:0", Seeds: seeds, Keys: [][]byte{testKey},
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	a := open("a")
	defer a.Close()
	b := open("b", "localhost:1", a.Addr().String())
	defer b.Close()
	for _, g := range []*Gossip{a, b} {
		if err := g.SetLoad([]byte("busy")); err != nil {
			t.Error(err)
		}
	}
	want := func(g *Gossip, kind EventKind, member string) MemberEvent {
		t.Helper()
		for {
			select {
			case e := <-g.Events():
				if e.Kind == kind && e.Member.Name == member {
					return e
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: no event of %s: %v", g.Name(), member, kind)
			}
		}
	}
	want(a, Joined, "b")
	want(a, Loaded, "b")
	<-b.Ready()
	if e := want(b, Loaded, "a"); string(e.Load.Data) != "busy" {
		t.Errorf("got load %q, want busy", e.Load.Data)
	}
	taken := Config{Name: "c", Bind: a.Addr().String()}
	if g, err := Open(t.Context(), taken); err == nil {
		g.Close()
		t.Error("an address in use was taken again")
	} else if want := fmt.Sprintf("gossip: listen on %v: ",
		a.Addr()); !strings.HasPrefix(err.Error(), want) ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %q, want %q and the reason", err, want)
	}
	foreign := Config{Name: "d", Bind: "192.0.2.1:0", Insecure: true}
	if g, err := Open(t.Context(), foreign); err == nil {
		g.Close()
		t.Error("an address of another machine was taken")
	}

	if err := b.Leave(time.Minute); err != nil {
		t.Error(err)
	}
	want(a, Left, "b")
	if s := a.Stats(); s.Members != 1 || s.PacketsSent == 0 || s.PacketBytesSent == 0 ||
		s.PacketsReceived == 0 || s.PacketBytesReceived == 0 ||
		s.StreamBytesSent == 0 || s.StreamBytesReceived == 0 || s.LoadsReceived == 0 {
		t.Errorf("got %+v, want all that happened counted", s)
	}
}

// TestPacketGarbage: reading a packet allocates no more memory than the packet has bytes, and a
// packet larger than agents send is dropped.
func TestPacketGarbage(t *testing.T) {
	g, err := Open(t.Context(), Config{
		Name: "a", Bind: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	conn, err := net.Dial("udp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sent := int64(0)
	for g.Stats().PacketsReceived < 2000 { // some may be lost
		if _, err := conn.Write([]byte("nonsense")); err != nil {
			t.Fatal(err)
		}
		sent++
		runtime.Gosched()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / 2000; each > 8<<10 {
		t.Errorf("%d bytes of garbage for each of 2000 packets (%d sent), want at most %d", each,
			sent, 8<<10)
	}
	if n := g.Stats().Refused; n == 0 {
		t.Error("none of 2000 packets was refused")
	}
}

func TestAdvertise(t *testing.T) {
	for _, tt := range []struct {
		advertise string
		want      string // port 0 stands for the port of the listener
		err       string
	}{
		{"", "127.0.0.1:0", ""},
		{"10.1.2.3", "10.1.2.3:0", ""},
		{"10.1.2.3:99", "10.1.2.3:99", ""},
		{"two.example:99", "10.7.7.7:99", ""},
		{"none.example", "", `advertised host "none.example"`},
		{"all.example:99", "", `advertised host "all.example": 0.0.0.0 stands for all addresses`},
		{"0.0.0.0", "", "others would ask themselves"},
		{"0.0.0.0:99", "", "others would ask themselves"},
		{"::", "", "others would ask themselves"},
		{"[::]:99", "", "others would ask themselves"},
		{"::ffff:0.0.0.0", "", "others would ask themselves"},
		{"224.0.0.1", "", "224.0.0.1 is a multicast address"},
		{"[ff02::1]:99", "", "ff02::1 is a multicast address"},
		{"255.255.255.255:99", "", "is the broadcast address"},
		{"fe80::1", "", "fe80::1 is a link-local address"},
		{"10.1.2.3:0", "", "port 0"},
		{"[2001:db8::1]:0", "", "port 0"},
		{"2001:db8::0", "[2001:db8::]:0", ""},
	} {
		g, err := Open(t.Context(), Config{
			Name: "a", Bind: "localhost:0", Advertise: tt.advertise,
			Logger: slog.New(slog.DiscardHandler),
			Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
				if host == "all.example" {
					return []netip.Addr{netip.IPv4Unspecified()}, nil
				}
				if host != "two.example" {
					return nil, errors.New("no such host")
				}
				return []netip.Addr{
					netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("10.7.7.7"),
				}, nil
			},
		})
		if err != nil {
			if tt.err == "" || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("advertise %q: got %v, want %q", tt.advertise, err, tt.err)
			}
			continue
		}
		if tt.err != "" {
			t.Errorf("advertise %q: got %v, want an error", tt.advertise, g.Addr())
		}
		want := netip.MustParseAddrPort(tt.want)
		if want.Port() == 0 && g.Addr().Port() != 0 {
			want = netip.AddrPortFrom(want.Addr(), g.Addr().Port())
		}
		if g.Addr() != want || g.Members()[0].Addr != want {
			t.Errorf("advertise %q: got %v and member %v, want %v", tt.advertise, g.Addr(),
				g.Members()[0].Addr, want)
		}
		g.Close()
	}
}

// TestAdvertiseAll: an agent that listens on all addresses advertises one that other machines can
// reach.
func TestAdvertiseAll(t *testing.T) {
	addr, err := Outbound()
	if err != nil {
		t.Skipf("this machine reaches no other: %v", err)
	}
	g, err := Open(t.Context(), Config{
		Name: "a", Bind: ":0", Keys: [][]byte{testKey}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got := g.Addr(); got.Addr() != addr || got.Port() == 0 || addr.IsUnspecified() ||
		addr.IsLoopback() {
		t.Errorf("got %v, want %v and the port listened on", got, addr)
	}
}

var frames = []frame{
	{kind: loadFrame, member: idOf("a"), seq: 1, data: []byte("busy")},
	{kind: loadFrame, member: idOf("b"), seq: 1 << 63, age: 1234 * time.Millisecond},
	{kind: leavingFrame, member: idOf("c"), seq: 300, age: maxAge},
}

func FuzzFrame(f *testing.F) {
	for _, frame := range frames {
		f.Add(frame.encode())
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseFrame(b)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Errorf("got error %v, want it to be %v", err, errFrame)
			}
			return
		}
		again, err := parseFrame(got.encode())
		if err != nil || !equal(got, again) {
			t.Errorf("got %+v, then %+v, %v", got, again, err)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrames(nil, frames))
	f.Add([]byte{0})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseFrames(b)
		again, errAgain := parseFrames(appendFrames(nil, got))
		if errAgain != nil || !slices.EqualFunc(got, again, equal) {
			t.Errorf("got %+v (%v), then %+v, %v", got, err, again, errAgain)
		}
	})
}

func equal(a, b frame) bool {
	return a.kind == b.kind && a.member == b.member && a.seq == b.seq && a.age == b.age &&
		bytes.Equal(a.data, b.data)
}

func TestFrames(t *testing.T) {
	for _, f := range frames {
		if got, err := parseFrame(f.encode()); err != nil || !equal(got, f) {
			t.Errorf("got %+v, %v, want %+v", got, err, f)
		}
	}
	if f, err := parseFrame((frame{age: 2 * maxAge}).encode()); err != nil || f.age != maxAge {
		t.Errorf("got age %v, %v, want it bounded by %v", f.age, err, maxAge)
	}
	if got, err := parseFrames(appendFrames(nil, frames)); err != nil ||
		!slices.EqualFunc(got, frames, equal) {
		t.Errorf("got %+v, %v, want %+v", got, err, frames)
	}
	whole := frames[0].encode()
	for n := range len(whole) - len(frames[0].data) {
		if f, err := parseFrame(whole[:n]); err == nil {
			t.Errorf("the first %d bytes of a frame gave %+v, want an error", n, f)
		}
	}
	if _, err := parseFrame((frame{data: make([]byte, MaxLoad+1)}).encode()); err == nil {
		t.Error("too much data was not refused")
	}
}

func TestLoadInterval(t *testing.T) {
	for members, want := range map[int]time.Duration{
		1: time.Second, 50: time.Second, 75: 1500 * time.Millisecond, 1000: 20 * time.Second,
	} {
		if got := loadInterval(members); got != want {
			t.Errorf("%d members: got %v, want %v", members, got, want)
		}
	}
}

// TestQueue: each frame is sent the same number of times, the frames sent least often first, also
// if some do not fit; and a newer frame replaces an older one.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue{members: func() int { return 50 }, newest: map[memberID]*broadcast{}}
		const members, sends = 40, 2 * loadTransmits
		for i := range members {
			q.add(&broadcast{
				frame: frame{kind: loadFrame, member: memberID(i), seq: 1, data: []byte("old")},
				made:  time.Now(),
			})
			q.add(&broadcast{
				frame: frame{kind: loadFrame, member: memberID(i), seq: 2, data: []byte("new")},
				made:  time.Now(),
			})
		}
		time.Sleep(70 * time.Millisecond)
		sent := map[memberID]int{}
		for packets := 0; ; packets++ {
			messages := q.takeMessages(3, 200)
			size := 0
			for _, m := range messages {
				f, err := parseFrame(m)
				if err != nil || f.seq != 2 || f.age != 70*time.Millisecond ||
					string(f.data) != "new" {
					t.Fatalf("got %+v, %v, want the newer load, 70 ms old", f, err)
				}
				sent[f.member]++
				size += 3 + len(m)
			}
			if size > 200 {
				t.Errorf("got %d bytes, want at most 200", size)
			}
			least, most := sends, 0
			for i := range members {
				least, most = min(least, sent[memberID(i)]), max(most, sent[memberID(i)])
			}
			if most-least > 1 {
				t.Fatalf("after %d packets one was sent %d times and another %d times", packets,
					most, least)
			}
			if messages == nil {
				if least != sends || most != sends {
					t.Errorf("sent %d to %d times, want %d", least, most, sends)
				}
				break
			}
		}
		if len(q.waiting)+len(q.newest) > 0 {
			t.Errorf("got %d frames left", len(q.waiting))
		}
	})
}

// TestFaults: memberlist's log lines are translated, and repeated ones are left out.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &logs{}
		f := newFaultLog(slog.New(slog.NewTextHandler(logs, nil)))
		l := f.newLogger()
		for i := range 100 {
			l.Printf(
				"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the "+
					"message from=10.0.0.1:%d", 1000+i)
			l.Printf("[DEBUG] memberlist: Failed UDP ping: x (timeout reached)")
			l.Printf("[WARN] memberlist: something new, %d times", i)
			l.Printf("no level at all")
			l.Printf(
				"[WARN] memberlist: Was able to connect to x%d over TCP but UDP probes failed, "+
					"network may be misconfigured", i)
		}
		if got := logs.warnings(); len(got) != 4 ||
			len(logs.with("unreadable with our keys", "peer=10.0.0.1\n")) != 1 ||
			len(logs.with("gossip: something new, 0 times")) != 1 ||
			len(logs.with("gossip: no level at all")) != 1 ||
			len(logs.with("answers over TCP but not UDP", "x0 over TCP")) != 1 ||
			len(logs.lines) != 4 {
			t.Errorf("got %q, want four lines", logs.lines)
		}
		for i := range 10000 {
			l.Printf("[ERR] memberlist: Decrypt packet failed: x from=10.1.%d.%d:5", i/256, i%256)
		}
		if got := len(logs.lines); got != maxFaults+1 ||
			len(logs.with("too many different faults")) != 1 {
			t.Errorf("got %d lines, want %d and one that says so", got, maxFaults)
		}
		logs.clear()
		time.Sleep(faultInterval + time.Second)
		l.Printf("no level at all")
		if len(logs.lines) != 2 ||
			len(logs.with("faults repeated", fmt.Sprintf("times=%d", 4*99+10000-60-1))) != 1 {
			t.Errorf("got %q, want the line again, and how many were left out", logs.lines)
		}
	})
}
