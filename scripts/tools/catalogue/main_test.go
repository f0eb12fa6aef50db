package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/profiles"
)

const generated = `package pricing

// generated at 2026-07-20T13:44:30Z for us-east-1

var InitialOnDemandPricesAWS = map[string]map[T]float64{
	"us-east-2": {"c5.large": 9},
	// us-east-1
	"us-east-1": {
		"c5.large": 0.085000, "c9.large": 0.1, "g4ad.xlarge": 0.378530,
		"g7.large": 1, "g6f.large": 0.2, "p3.2xlarge": 3.06, "p3.8xlarge": 12, "x1.32xlarge": 13, "c1.medium": 0.13,
	},
}
`

const gpus = `package drametadata

var GPUMetadataByInstanceType = map[string]*DeviceMetadata{
	"g6f.large": {Count: 1, Devices: []DRADevice{{Attributes: map[Q]A{
		"brand": {StringValue: strPtr("Nvidia")}, "productName": {StringValue: strPtr("NVIDIA L4-3Q")},
	}}}},
}
`

func TestMerge(t *testing.T) {
	d := &data{hardware: map[string]hardware{
		"c5.large":  {Family: "Compute optimized", Generation: "current", VCPUs: 2, Memory: 4},
		"c1.medium": {Family: "Compute optimized", Generation: "previous", VCPUs: 2, Memory: 1.7},
		"g4ad.xlarge": {
			Family: "GPU instance", Generation: "current", VCPUs: 4, Memory: 16,
			GPU: "AMD Radeon Pro V520",
		},
		"p3.2xlarge": {
			Family: "GPU instance", Generation: "current", VCPUs: 8, Memory: 61,
			GPU: "NVIDIA Tesla V100",
		},
	}}
	var err error
	if d.price, d.priced, err = readPrices([]byte(generated)); err != nil ||
		d.priced != "2026-07-20" {
		t.Fatalf("read on %q, %v", d.priced, err)
	}
	if d.gpu, err = readGPUs([]byte(gpus)); err != nil ||
		!maps.Equal(d.gpu, map[string]string{"g6f.large": "NVIDIA L4-3Q"}) {
		t.Fatalf("GPUs %v, %v", d.gpu, err)
	}
	types, without, err := d.merge()
	if err != nil || !slices.Equal(without, []string{"g7.large"}) {
		t.Fatalf("left out %v, %v; want g7.large, of which the GPU is not known", without, err)
	}
	want := []profiles.Instance{
		{Type: "c5.large", PriceUSDPerHour: 0.085, VCPUs: 2, MemoryGiB: 4,
			Class: profiles.ComputeOptimized},
		{Type: "c9.large", PriceUSDPerHour: 0.1, Class: profiles.ComputeOptimized},
		{Type: "g4ad.xlarge", PriceUSDPerHour: 0.37853, VCPUs: 4, MemoryGiB: 16,
			Class: profiles.Accelerated, GPU: "AMD Radeon Pro V520"},
		{Type: "g6f.large", PriceUSDPerHour: 0.2, Class: profiles.Accelerated, GPU: "NVIDIA L4-3Q"},
		{Type: "p3.2xlarge", PriceUSDPerHour: 3.06, VCPUs: 8, MemoryGiB: 61,
			Class: profiles.Accelerated, GPU: "NVIDIA Tesla V100"},
	}
	if !slices.Equal(types, want) {
		t.Errorf("got %+v, want %+v", types, want)
	}
	text, err := write(types)
	if err != nil || !strings.Contains(string(text), "\nc9.large,0.1,,,compute-optimized,\n") {
		t.Errorf("%v: %s", err, text)
	}
	if _, _, err := readPrices(
		[]byte(strings.Replace(generated, `"us-east-1": {`, `"us-west-1": {`, 1))); err == nil {
		t.Error("prices of no region")
	}
}
