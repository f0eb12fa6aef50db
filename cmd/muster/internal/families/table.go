package families

import (
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/evaluate"
)

// sizes are the batch sizes whose latency is measured.
var sizes = []int{1, 64, 512}

// A measuredVariant model is a line of the table. Latencies are in ms, by sizes; 0 for a size
// that the model refuses.
type measuredVariant struct {
	Model     string        `json:"model"`
	Bytes     int64         `json:"bytes"`
	Latencies []float64     `json:"latency_ms"`
	Metric    models.Metric `json:"metric"`
	Score     float64       `json:"score"`
	Error     float64       `json:"error"`
	Lost      float64       `json:"lost"`
	LostError float64       `json:"lost_error"`
	Beside    string        `json:"lost_beside"`
	Accuracy  float64       `json:"accuracy"`
	Dominated string        `json:"dominated_by,omitempty"`
	// TooInaccurate is whether it does not answer for the family, with the best of these models in
	// it.
	TooInaccurate bool    `json:"too_inaccurate,omitempty"`
	floor         float64 // the least accuracy that would do
}

// tableOf makes the lines of the table.
func tableOf(versions []*models.Version, scores []evaluate.Score, latencies [][]time.Duration) (
	[]measuredVariant, error) {
	beside := slices.IndexFunc(scores, func(s evaluate.Score) bool { return s.Model == s.Beside })
	best := scores[beside].Value
	ofBest := accuracy.Best{} // the best of these models is that of the family
	ofBest.Add("", 1)
	for _, v := range versions {
		ofBest.Require("", v.Config.MinAccuracy)
	}
	var list []measuredVariant
	for i, s := range scores {
		m := measuredVariant{
			Model: s.Model, Metric: s.Metric, Score: s.Value, Error: s.Error, Lost: s.Lost,
			LostError: s.LostError, Beside: s.Beside, Accuracy: s.Metric.Accuracy(s.Value, best),
		}
		for _, l := range latencies[i] {
			m.Latencies = append(m.Latencies, float64(l)/float64(time.Millisecond))
		}
		var err error
		if m.Bytes, err = bytesOf(filepath.Dir(versions[i].Path)); err != nil {
			return nil, err
		}
		m.TooInaccurate, m.floor = ofBest.Excludes("", m.Accuracy), ofBest[""].Floor()
		list = append(list, m)
	}
	for i := range list {
		for _, other := range list {
			if list[i].Dominated == "" && list[i].dominatedBy(other) {
				list[i].Dominated = other.Model
			}
		}
	}
	return list, nil
}

// dominatedBy reports whether m is no more accurate than other and slower with batches. A few
// percent of latency are noise.
func (m measuredVariant) dominatedBy(other measuredVariant) bool {
	last := len(m.Latencies) - 1
	for i := max(0, last-1); i <= last; i++ {
		if !(m.Latencies[i] > 1.03*other.Latencies[i]) {
			return false
		}
	}
	return last >= 0 && m.Score <= other.Score
}

// bytesOf is the size of the files in a version's folder.
func bytesOf(folder string) (n int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// printTable prints the table, and what it means.
func printTable(w io.Writer, list []measuredVariant, rows int, against string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "MODEL\tBYTES\t")
	for i := range list[0].Latencies {
		fmt.Fprintf(table, "MS AT %d\t", sizes[i])
	}
	fmt.Fprintf(table, "%s\tERROR\tLOST\tERROR\tACCURACY\t\n",
		strings.ToUpper(string(list[0].Metric)))
	for _, m := range list {
		fmt.Fprintf(table, "%s\t%d\t", terminal.Plain(m.Model), m.Bytes)
		for _, l := range m.Latencies {
			fmt.Fprintf(table, "%s\t", formatFigures(l))
		}
		fmt.Fprintf(table, "%.4f\t%.4f\t%.5f\t%.5f\t%.4f\t\n", m.Score, m.Error, m.Lost,
			m.LostError, m.Accuracy)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(
		w, "%d rows against %s. LOST is what a model scores less than %s, on the same rows.\n",
		rows, terminal.Plain(against), terminal.Plain(list[0].Beside))
	for _, m := range list {
		if m.Dominated != "" {
			but := ""
			i := slices.IndexFunc(list,
				func(o measuredVariant) bool { return o.Model == m.Dominated })
			if m.Bytes < list[i].Bytes {
				but = fmt.Sprintf(", but takes %.1f times the bytes",
					float64(list[i].Bytes)/float64(m.Bytes))
			}
			fmt.Fprintf(w, "%s is dominated: %s is faster and no less accurate%s\n",
				terminal.Plain(m.Model), terminal.Plain(m.Dominated), but)
		}
	}
	for _, m := range list {
		if m.TooInaccurate {
			fmt.Fprintf(w, "WARNING: %s is too inaccurate to answer for a family: its accuracy is "+
				"%.4f, less than %.4g. Agents serve it under its own name only; delete it, make a more "+
				"accurate one, or state a lower min_accuracy in model.yaml.\n",
				terminal.Plain(m.Model), m.Accuracy, m.floor)
		}
	}
	return nil
}

// formatFigures writes x with three significant figures, or as a whole number from 100 on.
func formatFigures(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
