package profiles_test

import (
	"fmt"
	"log"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// How long does a query take on each instance type, and what does the type cost?
func Example() {
	library, catalogue := profiles.ShippedLibrary(), profiles.DefaultCatalogue()
	for _, instanceType := range library.Types("wnd") {
		table, err := library.Table("wnd", instanceType)
		if err != nil {
			log.Fatal(err)
		}
		instance, err := catalogue.Lookup(instanceType)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %.3f $/hr, a batch of 200 takes %.1f ms, 99 %% of them at most %.1f ms\n",
			instanceType, instance.PriceUSDPerHour, inMs(table.Mean(200)),
			inMs(table.Quantile(0.99, 200)))
	}
	// Output:
	// c5n.2xlarge: 0.432 $/hr, a batch of 200 takes 7.1 ms, 99 % of them at most 7.6 ms
	// g4dn.xlarge: 0.526 $/hr, a batch of 200 takes 3.8 ms, 99 % of them at most 3.9 ms
	// r5n.large: 0.149 $/hr, a batch of 200 takes 8.7 ms, 99 % of them at most 9.4 ms
	// t3.xlarge: 0.166 $/hr, a batch of 200 takes 17.3 ms, 99 % of them at most 29.9 ms
}

// A learner starts from a profile of something alike, here the shipped one, and follows what it
// observes. This machine is twice as slow as the profile says.
func ExampleLearner() {
	key := profiles.Key{Model: "wnd", Version: 1, InstanceType: "r5n.large", Provider: "cpu"}
	prior, err := profiles.ShippedLibrary().Table("wnd", "r5n.large")
	if err != nil {
		log.Fatal(err)
	}
	learner := profiles.NewLearner(key, prior)
	now := time.Unix(0, 0) // the learner reads no clock
	for i := range 100 {
		batchSize := 1 + 10*i
		now = now.Add(time.Second)
		if err := learner.Observe(batchSize, 2*prior.Mean(batchSize), "agent-1", now); err != nil {
			log.Fatal(err)
		}
	}
	learned := learner.LatencyTable()
	fmt.Printf("a batch of 200: %.1f ms shipped, %.1f ms learned from %d queries\n",
		inMs(prior.Mean(200)), inMs(learned.Mean(200)), learner.Queries())
	// Output:
	// a batch of 200: 8.7 ms shipped, 17.5 ms learned from 100 queries
}

// A monitor says when the batch sizes or the rate of queries have changed.
func ExampleMonitor() {
	monitor := profiles.NewMonitor()
	now := time.Unix(0, 0)
	observe := func(queries, batchSize int) {
		for i := range queries {
			now = now.Add(10 * time.Millisecond)
			if err := monitor.Observe(batchSize+i%50, now); err != nil {
				log.Fatal(err)
			}
		}
		_, changed := monitor.Change()
		fmt.Printf("%.0f queries/s, changed: %v\n", monitor.Rate(now, time.Second), changed)
	}
	observe(5000, 100)
	observe(1500, 400) // larger batches: some hundred are a suspicion, a thousand more confirm it
	// Output:
	// 100 queries/s, changed: false
	// 100 queries/s, changed: true
}

func inMs(d time.Duration) float64 { return d.Seconds() * 1000 }
