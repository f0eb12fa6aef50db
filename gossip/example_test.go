package gossip_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/muster-serve/muster/gossip"
)

// Two agents find each other by one address, and each learns what the other says about itself.
func Example() {
	ctx := context.Background()
	first, err := gossip.Open(ctx, gossip.Config{
		Name: "first", Bind: "127.0.0.1:0", Meta: []byte("serves ncf"),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()
	second, err := gossip.Open(ctx, gossip.Config{
		Name: "second", Bind: "127.0.0.1:0", Meta: []byte("serves wnd"),
		Logger: slog.New(slog.DiscardHandler),
		Seeds:  []string{first.Addr().String()},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()

	for e := range first.Events() {
		if e.Kind == gossip.Joined && e.Member.Name == "second" {
			fmt.Printf("%s joined: %s\n", e.Member.Name, e.Member.Meta)
			break
		}
	}
	if err := second.Leave(time.Second); err != nil {
		log.Fatal(err)
	}
	for e := range first.Events() {
		if e.Kind == gossip.Left {
			fmt.Printf("%s left\n", e.Member.Name)
			break
		}
	}
	// Output:
	// second joined: serves wnd
	// second left
}
