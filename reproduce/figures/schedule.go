package figures

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"image/color"
	"io"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// fig5: four queries of RM2 on a GPU and a CPU, in the order of their arrival and as KAIROS places
// them.
func fig5(ctx context.Context, l *lab) (*Figure, error) {
	queries := []workload.Query{
		{At: ms(0), Model: "rm2", BatchSize: 120},
		{At: ms(5), Model: "rm2", BatchSize: 880},
		{At: ms(60), Model: "rm2", BatchSize: 300},
		{At: ms(200), Model: "rm2", BatchSize: 260},
	}
	cfg, err := l.config("rm2", workload.Trace())
	if err != nil {
		return nil, err
	}
	m := &cfg.Models[0]
	types := []string{"g4dn.xlarge", "r5n.large"}
	for _, t := range types { // the picture is about means, not about noise
		m.Latencies[t] = steady{m.Latencies[t]}
	}
	cfg.Pool = sim.Pool{{Type: types[0], Count: 1}, {Type: types[1], Count: 1}}
	cfg.Queries, cfg.Rate = len(queries), 1
	cfg.Stream = func(*sim.Config) (iter.Seq[workload.Query], error) {
		return slices.Values(queries), nil
	}
	f := &Figure{
		Rows: [][]string{
			{"policy", "query", "batch_size", "arrival_ms", "instance_type", "start_ms",
				"finish_ms", "latency_ms", "within_qos_target"},
		},
	}
	var lines []timeline
	served := map[string]int{}
	for _, policy := range []string{"fcfs", "kairos"} {
		cfg.Policy = policy
		var log bytes.Buffer
		cfg.Log = &log
		if _, err := sim.Run(ctx, cfg); err != nil {
			return nil, err
		}
		p, err := readTimeline(&log, policy, types)
		if err != nil {
			return nil, err
		}
		for _, b := range p.bars {
			if b.onTime {
				served[policy]++
			}
			f.Rows = append(f.Rows, []string{
				policy, strconv.Itoa(b.query + 1), strconv.Itoa(b.batchSize), number(b.arrival),
				types[b.lane], number(b.start), number(b.finish), number(b.finish - b.arrival),
				strconv.FormatBool(b.onTime),
			})
		}
		lines = append(lines, p)
	}
	f.show(1, &timelines{
		title: fmt.Sprintf("Four queries of RM2 on two instances (KAIROS Fig. 5); QoS target %v",
			m.QoSTarget),
		types: types, all: lines,
	})
	f.Text = append(
		f.Text,
		fmt.Sprintf(
			"%s: of four queries KAIROS serves %d within the QoS target, first come first served "+
				"%d, on the same two instances: it keeps the GPU for the query that it speeds up "+
				"most. (The example is ours; the paper gives no numbers for its own.)",
			outcome(served["kairos"] == 4 && served["fcfs"] == 3), served["kairos"],
			served["fcfs"]))
	return f, nil
}

// steady is a latency without its noise.
type steady struct{ match.Latencies }

// Quantile is the mean at any p.
func (s steady) Quantile(_ float64, batchSize int) time.Duration { return s.Mean(batchSize) }

func ms(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

// A timeline is who served what when, in ms.
type timeline struct {
	policy string
	bars   []bar
}

type bar struct {
	query, batchSize, lane int
	arrival, start, finish float64
	onTime                 bool
}

// readTimeline reads the simulator's log of queries.
func readTimeline(r io.Reader, policy string, types []string) (timeline, error) {
	p := timeline{policy: policy}
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return p, err
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, row := range rows[1:] {
		var errs []error
		number := func(name string) float64 {
			x, err := strconv.ParseFloat(row[column[name]], 64)
			errs = append(errs, err)
			return x
		}
		b := bar{
			query:     int(number("query")),
			batchSize: int(number("batch_size")),
			lane:      slices.Index(types, row[column["instance_type"]]),
			arrival:   number("arrival_ms"),
			onTime:    row[column["on_time"]] == "true",
		}
		b.start, b.finish = b.arrival+number("waited_ms"), b.arrival+number("latency_ms")
		if err := errors.Join(errs...); err != nil {
			return p, err
		}
		p.bars = append(p.bars, b)
	}
	slices.SortFunc(p.bars, func(a, b bar) int { return a.query - b.query })
	return p, nil
}

// timelines are one above the other, a row an instance.
type timelines struct {
	title string
	types []string
	all   []timeline
}

// NewPanel makes the picture.
func (l *timelines) NewPanel() *picture.Panel {
	p := picture.New(l.title, "ms", "")
	p.Width, p.Height, p.Headroom = 560, 260, 0
	p.X.Min, p.X.Max = 0, 0
	var ticks []picture.Tick
	rows := 0
	for _, line := range l.all {
		for j, t := range l.types {
			ticks = append(ticks, picture.Tick{Value: float64(-rows), Label: line.policy + ", " + t})
			p.Add(&rowBars{line.bars, j, float64(-rows)})
			rows++
			for _, b := range line.bars {
				p.X.Max = max(p.X.Max, b.finish)
			}
		}
	}
	p.X.Max *= 1.05
	p.Y.Min, p.Y.Max = -float64(rows)+0.4, 0.6
	p.Y.Ticks = func(float64, float64) []picture.Tick { return ticks }
	p.Y.TickLength = 0
	return p
}

// rowBars are the queries that one instance served.
type rowBars struct {
	bars []bar
	lane int
	y    float64
}

// Plot draws them; those beyond the QoS target are hatched by a red frame.
func (r *rowBars) Plot(c picture.Canvas, p *picture.Panel) {
	x, y := p.Transforms(c)
	style := picture.TextOf(9)
	style.XAlign, style.YAlign = picture.Middle, picture.Middle
	for _, b := range r.bars {
		if b.lane != r.lane {
			continue
		}
		box := []picture.Point{
			{X: x(b.start), Y: y(r.y - 0.32)}, {X: x(b.finish), Y: y(r.y - 0.32)},
			{X: x(b.finish), Y: y(r.y + 0.32)}, {X: x(b.start), Y: y(r.y + 0.32)},
		}
		label := fmt.Sprintf("Q%d: %d", b.query+1, b.batchSize)
		frame := picture.LineStyle{Color: color.Black, Width: 0.75}
		fill := tint(picture.Colour(b.query % 4))
		if !b.onTime {
			label += ", late"
			fill = color.Gray{0xee}
			frame = picture.LineStyle{
				Color: picture.Colour(1), Width: 1.5, Dashes: []float64{
					4, 2,
				},
			}
		}
		c.FillPolygon(fill, box)
		c.StrokeOutline(frame, box)
		c.FillText(style, picture.Point{X: (x(b.start) + x(b.finish)) / 2, Y: y(r.y)}, label)
	}
}

// tint is half white.
func tint(c color.Color) color.Color {
	r, g, b, _ := c.RGBA()
	half := func(v uint32) uint8 { return uint8((v>>8 + 0xff) / 2) }
	return color.RGBA{half(r), half(g), half(b), 0xff}
}
