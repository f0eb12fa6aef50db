package gossip

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/muster-serve/muster/gossip/gossiptest"
)

// packed is a message of memberlist's kind.
func packed(t *testing.T, kind byte, message any) []byte {
	t.Helper()
	b := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(message); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lzw.NewWriter(&out, lzw.LSB, 8)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed(t, compressMessage, struct {
		Algo uint8
		Buf  []byte
	}{0, out.Bytes()})
}

// TestCheckStream: what an agent sends passes, and what would have memberlist allocate for what has
// not been sent does not.
func TestCheckStream(t *testing.T) {
	state := func(nodes, bytes int) []byte {
		return packed(t, pushPullMessage, struct {
			Nodes, UserStateLen int
			Join                bool
		}{nodes, bytes, true})
	}
	for _, good := range [][]byte{state(1, 0), state(maxStateNodes, maxStateBytes), {0, 1, 2}} {
		if err := checkStream(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]byte{
		state(maxStateNodes+1, 0), state(1<<20, 0), state(-1, 0), state(1, maxStateBytes+1),
		state(1, -1), state(2, 10)[:5],
		{pushPullMessage}, compressed(t, state(1, 1)),
		packed(t, userMessage, struct{ UserMsgLen int }{20 << 20}),
	} {
		if err := checkStream(bad); err == nil {
			t.Errorf("%q is let in", bad)
		}
	}
}

// TestForeignPackets: a compressed message is found wherever a packet may have one, as are others
// that only serve to have much in a packet.
func TestForeignPackets(t *testing.T) {
	ping := []byte{0, 1, 2, 3}
	bomb := compressed(t, make([]byte, 1<<16))
	compound := func(parts ...[]byte) []byte {
		b := []byte{compoundMessage, byte(len(parts))}
		for _, p := range parts {
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
		}
		return append(b, slices.Concat(parts...)...)
	}
	crc := func(b []byte) []byte { return append([]byte{crcMessage, 1, 2, 3, 4}, b...) }
	for _, bad := range [][]byte{
		bomb, crc(bomb), compound(ping, bomb), crc(compound(ping, compound(ping, bomb))),
		compound(crc(bomb)),
		compound(ping, compound(ping)), compound(ping, nil), compound(crc(ping)), crc(crc(ping)),
	} {
		if !isForeign(bad) {
			t.Errorf("not found in %d bytes that begin with %v", len(bad), bad[:8])
		}
	}
	for _, good := range [][]byte{
		nil, {}, {compoundMessage}, {compoundMessage, 200, 1}, ping, crc(ping),
		compound(ping, ping), crc(compound(ping)),
	} {
		if isForeign(good) {
			t.Errorf("found in %v", good)
		}
	}
}

// TestStreamIntake: streams that others keep open, and what they send, are bounded with a key and
// without; agents join all the same once they have ended.
func TestStreamIntake(t *testing.T) {
	for _, keys := range [][][]byte{nil, {testKey}} {
		t.Run(fmt.Sprint(len(keys), " keys"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
				c.add(func(config *Config) { config.Keys = keys })
				stranger := c.network.Listen("10.0.9.9:9")
				var open []net.Conn
				for range 2 * maxStreams {
					conn, err := stranger.DialTimeout(addrOf(0), time.Second)
					if err != nil {
						t.Fatal(err)
					}
					open = append(open, conn)
					go func() {
						// It begins a state, and goes silent before the end.
						if keys == nil {
							_, _ = conn.Write(
								packed(t, pushPullMessage, struct{ Nodes, UserStateLen int }{
									maxStateNodes, 0,
								}))
							return
						}
						// encrypted, of 18 MiB
						b := append([]byte{10, 1, 0x20, 0, 0}, make([]byte, 1<<19)...)
						for range 30 {
							if _, err := conn.Write(b); err != nil {
								return
							}
							b = b[5:]
						}
					}()
				}
				time.Sleep(time.Second)
				c.agents[0].transport.mu.Lock()
				streams, bytes := c.agents[0].transport.strangers.streams,
					c.agents[0].transport.strangers.bytes
				c.agents[0].transport.mu.Unlock()
				if streams > maxStreams || bytes > maxStreamBytes+maxStreams<<16 {
					t.Errorf("%d streams are open, %d bytes of them have been read", streams, bytes)
				}
				time.Sleep(streamTimeout)
				c.add(func(config *Config) { config.Keys = keys })
				c.within(time.Minute, "they see each other", func() bool { return see(c.agents) })
				for _, conn := range open {
					conn.Close()
				}
				stranger.Shutdown()
				time.Sleep(time.Minute)
				c.agents[0].transport.mu.Lock()
				if n, bytes := c.agents[0].transport.strangers.streams,
					c.agents[0].transport.strangers.bytes; n != 0 || bytes != 0 {
					t.Errorf("%d streams and %d bytes are counted when all have ended", n, bytes)
				}
				c.agents[0].transport.mu.Unlock()
				c.close()
			})
		})
	}
}

// TestPacketIntake: what a stranger sends beyond its share is not read, whether from one address or
// many, and takes nothing from the members, who have shares of their own.
func TestPacketIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		a := c.agents[0]
		const seconds, rate = 20, 5000
		var strangers []*gossiptest.Transport
		for i := range 10 {
			strangers = append(strangers, c.network.Listen(fmt.Sprintf("10.0.9.%d:9", i+1)))
			defer strangers[i].Shutdown()
		}
		before := a.Stats()
		for i := range seconds * rate {
			if _, err := strangers[i%len(strangers)].WriteTo([]byte("nonsense"),
				addrOf(0)); err != nil {
				t.Error(err)
			}
			if i%100 == 0 {
				time.Sleep(time.Second * 100 / rate)
			}
		}
		after := a.Stats()
		read := after.PacketsReceived - before.PacketsReceived - (after.Refused - before.Refused)
		// Its members send what it reads of them.
		if most := int64(packetBurst + seconds*packetRate + 60*seconds); read > most {
			t.Errorf("%d packets were read in %d s, want at most %d", read, seconds, most)
		}
		if after.Refused-before.Refused < seconds*(rate-packetRate)-2*packetBurst {
			t.Errorf("%d packets were refused of %d", after.Refused-before.Refused, seconds*rate)
		}
		if !see(c.agents) {
			t.Error("the members have lost each other")
		}
		for _, g := range c.agents[1:] {
			if n := g.Stats().Refused; n > 0 {
				t.Errorf("%s has refused %d packets, though only members send to it", g.Name(), n)
			}
		}
		c.close()
	})
}

// TestIntakeOfMembers: a member has a share of its own from when it is vouched for until it goes,
// and its host with it.
func TestIntakeOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIntakeLimits()
		all := func(from netip.AddrPort) (n int) {
			for n <= packetBurst && i.countPacket(from) {
				n++
			}
			return n
		}
		stranger, member, beside := netip.MustParseAddrPort("10.0.0.9:1"), netip.MustParseAddrPort(
			"10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.1:2")
		i.raiseLimits(member)
		i.raiseLimits(member) // another in the place of the first
		i.restoreLimits(member)
		if n := all(stranger); n != packetBurst {
			t.Errorf("%d packets of a stranger are read, want %d", n, packetBurst)
		}
		if n := all(beside); n != 0 {
			t.Errorf("%d packets of another port of a member's host are read, want 0", n)
		}
		if n := all(member); n != packetBurst || !i.isMember(member.Addr()) {
			t.Errorf("%d packets of a member are read, want %d", n, packetBurst)
		}
		i.restoreLimits(member)
		time.Sleep(time.Second)
		if n := all(member) + all(stranger); n != packetRate || i.isMember(member.Addr()) ||
			len(i.members) != 0 {
			t.Errorf(
				"%d packets of one who was a member and of a stranger are read after a second, "+
					"want %d", n, packetRate)
		}
	})
}

// TestMembersStreams: strangers that hold all streams that they may, and open others all the time,
// take none from members, and one address does not have all of theirs.
func TestMembersStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		tr := c.agents[0].transport
		open := func(from string, n int) (taken int) {
			stranger := c.network.Listen(from)
			t.Cleanup(func() { stranger.Shutdown() })
			for range n {
				if _, err := stranger.DialTimeout(addrOf(0), time.Second); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			tr.mu.Lock()
			defer tr.mu.Unlock()
			return tr.strangers.streams
		}
		if n := open("10.0.9.1:9", maxStreams); n != maxHostStreams {
			t.Errorf("one stranger has %d streams, want %d", n, maxHostStreams)
		}
		if n := open("10.0.9.2:9", maxStreams); n != maxStreams {
			t.Errorf("two strangers have %d streams, want %d", n, maxStreams)
		}
		before := c.agents[0].Stats().Refused
		if _, err := c.agents[1].list.Join([]string{addrOf(0)}); err != nil {
			t.Errorf("a member cannot exchange its state: %v", err)
		}
		if after := c.agents[0].Stats().Refused; after != before {
			t.Errorf("%d streams of members were refused", after-before)
		}
		c.close()
	})
}

// TestStreamRate: strangers open so many streams a second, though each ends at once.
func TestStreamRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		stranger := c.network.Listen("10.0.9.1:9")
		const seconds, rate = 10, 200
		for i := range seconds * rate {
			conn, err := stranger.DialTimeout(addrOf(0), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if i%10 == 0 {
				time.Sleep(time.Second * 10 / rate)
			}
		}
		synctest.Wait()
		if n, least := c.agents[0].Stats().Refused, int64(seconds*(rate-streamRate)-
			streamBurst); n < least {
			t.Errorf("%d streams of %d were refused, want at least %d", n, seconds*rate, least)
		}
		stranger.Shutdown()
		c.close()
	})
}

// TestReserve: when packets have named so many members that there is no place left for strangers,
// one that opens a stream has a place all the same, a few at a host.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		const places = 32
		a := c.add(func(config *Config) { config.Keys, config.MaxStrangers = nil, places })
		forger := c.network.Listen("10.0.9.9:9")
		forge := func(n int) {
			for i := range n {
				alive := packed(t, 4, struct {
					Incarnation uint32
					Node        string
					Addr        []byte
					Port        uint16
					Meta, Vsn   []byte
				}{1, fmt.Sprint("forged-", i), []byte{10, 9, 9, byte(i)}, 7946, nil, []byte{
					1, 5, 2, 0, 0, 0,
				}})
				if _, err := forger.WriteTo(alive, addrOf(0)); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Second)
		}
		forge(2 * places)
		if n, want := len(a.Members()), 1+places-places/4; n != want {
			t.Errorf("there are %d members, want %d", n, want)
		}
		b := c.add(func(config *Config) { config.Keys, config.Seeds = nil, []string{addrOf(0)} })
		c.within(5*time.Second, "the one that joins is a member", func() bool {
			return slices.ContainsFunc(a.Members(),
				func(m Member) bool { return m.Name == b.Name() })
		})

		// All that one host says by its stream that it has.
		conn, err := forger.DialTimeout(addrOf(0), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		before := len(a.Members())
		for i := range 20 {
			alive := packed(t, 4, struct {
				Incarnation uint32
				Node        string
				Addr        []byte
				Port        uint16
				Meta, Vsn   []byte
			}{1, fmt.Sprint("at-host-", i), []byte{10, 0, 9, 9}, uint16(1000 + i), nil, []byte{
				1, 5, 2, 0, 0, 0,
			}})
			if _, err := forger.WriteTo(alive, addrOf(0)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		if n := len(a.Members()) - before; n != hostReserve {
			t.Errorf("a host with a stream has %d places, want %d", n, hostReserve)
		}
		forger.Shutdown()
		c.close()
	})
}
