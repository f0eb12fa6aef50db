package gossip

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkLoads is what an agent does for a second of loads, one of each other member: it reads
// them, hands them to its reader, and passes them on in the thirty packets of a second. Without
// what memberlist does for a packet.
func BenchmarkLoads(b *testing.B) {
	for _, members := range []int{50, 200, 1000} {
		b.Run(fmt.Sprint("members=", members), func(b *testing.B) {
			g := &Gossip{config: Config{Name: "self"}, members: map[string]*entry{},
				ids: map[memberID]*entry{}, pending: map[eventKey]MemberEvent{},
				wake: make(chan struct{}, 1), events: make(chan MemberEvent)}
			g.queue.members, g.queue.newest = func() int {
				return members
			}, map[memberID]*broadcast{}
			var ids []memberID
			for i := range members - 1 {
				e := &entry{Member: Member{Name: NewName("ip-10-0-0-1") + fmt.Sprint(i)}}
				g.members[e.Name], g.ids[idOf(e.Name)] = e, e
				ids = append(ids, idOf(e.Name))
			}
			var cancel context.CancelFunc
			g.ctx, cancel = context.WithCancel(context.Background())
			go g.deliverEvents()
			defer func() { cancel(); <-g.events }()
			second := uint64(0)
			began := time.Now()
			for b.Loop() {
				second++
				for i, id := range ids {
					callbacks{
						g,
					}.NotifyMsg(frame{
						kind: loadFrame, member: id, seq: second, data: []byte("ten bytes."),
					}.encode())
					<-g.events
					if i%(len(ids)/30) == 0 {
						g.queue.takeMessages(2, packetSize)
					}
				}
			}
			b.ReportMetric(100*time.Since(began).Seconds()/float64(second), "%core")
			b.ReportMetric(0, "ns/op")
		})
	}
}
