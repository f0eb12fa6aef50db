package gossip

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"fmt"
	"net"
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
		state(maxStateNodes+1, 0), state(1<<20, 0), state(-1, 0), state(1, maxStateBytes+1), state(1, -1), state(2, 10)[:5],
		{pushPullMessage}, compressed(t, state(1, 1)), packed(t, userMessage, struct{ UserMsgLen int }{20 << 20}),
	} {
		if err := checkStream(bad); err == nil {
			t.Errorf("%q is let in", bad)
		}
	}
}

// TestCompressedPackets: a compressed message is found wherever a packet may have one.
func TestCompressedPackets(t *testing.T) {
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
	for _, bad := range [][]byte{bomb, crc(bomb), compound(ping, bomb), crc(compound(ping, compound(ping, bomb))), compound(crc(bomb))} {
		if !hasCompressed(bad) {
			t.Errorf("not found in %d bytes that begin with %v", len(bad), bad[:8])
		}
	}
	for _, good := range [][]byte{nil, {}, {compoundMessage}, {compoundMessage, 200, 1}, ping, crc(ping), compound(ping, ping), crc(compound(ping))} {
		if hasCompressed(good) {
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
							_, _ = conn.Write(packed(t, pushPullMessage, struct{ Nodes, UserStateLen int }{maxStateNodes, 0}))
							return
						}
						b := append([]byte{10, 1, 0x20, 0, 0}, make([]byte, 1<<19)...) // encrypted, of 18 MiB
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
				streams, bytes := c.agents[0].transport.inbound, c.agents[0].transport.inboundBytes
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
				if n, bytes := c.agents[0].transport.inbound, c.agents[0].transport.inboundBytes; n != 0 || bytes != 0 {
					t.Errorf("%d streams and %d bytes are counted when all have ended", n, bytes)
				}
				c.agents[0].transport.mu.Unlock()
				c.close()
			})
		})
	}
}
