package sim_test

import (
	"context"
	"fmt"
	"log"

	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// What would one g4dn.xlarge and four r5n.large do with 40 queries/s of RM2, and what is the
// highest rate that they can serve?
func Example() {
	pool, err := sim.ParsePool("g4dn.xlarge=1,r5n.large=4")
	if err != nil {
		log.Fatal(err)
	}
	source, err := sim.OpenSource("") // the shipped profiles
	if err != nil {
		log.Fatal(err)
	}
	model, err := source.Model("rm2", []string{"g4dn.xlarge", "r5n.large"}, workload.Trace(), 0)
	if err != nil {
		log.Fatal(err)
	}
	config := &sim.Config{Models: []sim.Model{model}, Pool: pool, Rate: 40, Queries: 2000, Seed: 1}

	result, err := sim.Run(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.1f %% of %d queries within %v\n", 100*result.QoSSatisfaction, result.Queries,
		model.QoSTarget)

	throughput, err := sim.FindThroughput(context.Background(), config, 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("allowable throughput %.0f queries/s, %.0f %% of the fluid limit\n",
		throughput.Rate, 100*throughput.Share)
	// Output:
	// 99.7 % of 2000 queries within 350ms
	// allowable throughput 53 queries/s, 91 % of the fluid limit
}
