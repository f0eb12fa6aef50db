package gossip

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/muster-serve/muster/gossip/gossiptest"
)

// A tap is a transport that tells what is sent.
type tap struct {
	*gossiptest.Transport
	said func(stream bool, b []byte)
}

func (t *tap) WriteTo(b []byte, addr string) (time.Time, error) {
	t.said(false, b)
	return t.Transport.WriteTo(b, addr)
}

func (t *tap) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := t.Transport.DialTimeout(addr, timeout)
	return &tappedConn{conn, t}, err
}

type tappedConn struct {
	net.Conn
	tap *tap
}

func (c *tappedConn) Write(b []byte) (int, error) {
	c.tap.said(true, b)
	return c.Conn.Write(b)
}

var _ memberlist.Transport = (*tap)(nil)

// FuzzWire sends an agent packets and streams of any bytes. Without a key it must at least live on;
// with one nothing of it may be believed. The input is, again and again, a byte that is odd for a
// stream, a length, and as many bytes.
func FuzzWire(f *testing.F) {
	part := func(stream bool, b []byte) []byte {
		kind := byte(0)
		if stream {
			kind = 1
		}
		return append(binary.AppendUvarint([]byte{kind}, uint64(len(b))), b...)
	}
	// What agents say to each other.
	var mu sync.Mutex // memberlist's probes go on for a while after Close
	var said [][]byte
	seen := map[byte]bool{}
	enough := make(chan struct{})
	network := gossiptest.NewNetwork(1)
	var opened []*Gossip
	for i, addr := range []string{"10.0.0.1:7946", "10.0.0.2:7946"} {
		t := &tap{Transport: network.Listen(addr)}
		t.said = func(stream bool, b []byte) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, part(stream, b))
			if i == 1 && len(b) > 0 && !seen[b[0]] {
				if seen[b[0]] = true; len(seen) == 3 { // of more kinds there are not always some
					close(enough)
				}
			}
		}
		g, err := Open(f.Context(), Config{
			Name: string(rune('a' + i)), Seeds: []string{"10.0.0.1:7946"}, Transport: t,
			Insecure: true, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			f.Fatal(err)
		}
		opened = append(opened, g)
	}
	<-enough
	for _, g := range opened {
		if err := g.Close(); err != nil {
			f.Fatal(err)
		}
	}
	mu.Lock()
	for _, b := range said {
		f.Add(b, false)
	}
	mu.Unlock()
	f.Add(part(true, []byte{6, 0x83, 0xa5, 'N', 'o', 'd', 'e', 's', 0xd2, 0x7f, 0xff, 0xff, 0xff}),
		false)
	f.Add(part(false, []byte{7, 255, 255, 255}), false)
	f.Add(part(false, []byte{244, 1, 'x', 8, 0}), true)
	f.Fuzz(func(t *testing.T, b []byte, keyed bool) {
		synctest.Test(t, func(t *testing.T) { playWire(t, b, keyed) })
	})
}

func playWire(t *testing.T, b []byte, keyed bool) {
	network := gossiptest.NewNetwork(1)
	open := func(name, addr string) *Gossip {
		config := Config{
			Name: name, Seeds: []string{"10.0.0.1:7946"}, Transport: network.Listen(addr),
			Insecure: true, Logger: slog.New(slog.DiscardHandler),
		}
		if keyed {
			config.Keys = [][]byte{testKey}
		}
		g, err := Open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	a := open("a", "10.0.0.1:7946")
	stranger := network.Listen("10.0.0.9:7946")
	for len(b) > 0 {
		kind := b[0]
		length, n := binary.Uvarint(b[1:])
		if n <= 0 {
			break
		}
		b = b[1+n:]
		data := b[:min(length, uint64(len(b)))]
		b = b[len(data):]
		if kind&1 == 0 {
			if _, err := stranger.WriteTo(data, "10.0.0.1:7946"); err != nil {
				t.Fatal(err)
			}
		} else if conn, err := stranger.DialTimeout("10.0.0.1:7946", time.Second); err == nil {
			go io.Copy(io.Discard, conn)
			_, _ = conn.Write(data) // the agent may have had enough
			synctest.Wait()
			_ = conn.Close()
		}
		synctest.Wait()
	}
	if keyed {
		other := open("b", "10.0.0.2:7946")
		<-other.Ready()
		time.Sleep(time.Second)
		for _, g := range []*Gossip{a, other} {
			var names []string
			for _, m := range g.Members() {
				names = append(names, m.Name)
			}
			if !slices.Equal(names, []string{"a", "b"}) {
				t.Errorf("%s sees %q, want a and b", g.Name(), names)
			}
		}
		_ = other.Close()
	}
	_ = a.Close()
	_ = stranger.Shutdown()
	time.Sleep(gossiptest.Settle)
}
