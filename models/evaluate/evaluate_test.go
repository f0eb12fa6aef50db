package evaluate

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tensor/npz"
	"github.com/muster-serve/muster/models"
)

func version(name string) *models.Version {
	return &models.Version{
		Model: name, Number: 1, Config: models.DefaultConfig(),
		Inputs: []models.TensorSpec{
			{Name: "x", DataType: tensor.FP32, Shape: []int64{models.Dynamic, 2}},
			{Name: "id", DataType: tensor.Int64, Shape: []int64{models.Dynamic, 1},
				IDBounds: []int64{9}},
		},
		Outputs: []models.TensorSpec{
			{Name: "p", DataType: tensor.FP32, Shape: []int64{models.Dynamic, 2}},
		},
	}
}

// subject is a model that answers [0, f(the row's first float)].
func subject(t *testing.T, name string, f func(x float64) float64) Subject {
	v := version(name)
	return Subject{Version: v, Run: func(_ context.Context, inputs []tensor.Tensor,
		use func([]tensor.Tensor) error) error {
		x, err := tensor.Values[float32](inputs[0])
		if err != nil {
			return err
		}
		var y []float32
		for i := 0; i < len(x); i += 2 {
			y = append(y, 0, float32(f(float64(x[i]))))
		}
		out, err := tensor.Of("p", y, int64(len(x)/2), 2)
		if err != nil {
			return err
		}
		return use([]tensor.Tensor{out})
	}}
}

func sigmoid(z float64) float64 { return 1 / (1 + math.Exp(-z)) }

// The AUC and its error are those of the definitions, also with equal answers.
func TestAUC(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	const n = 300
	draw := func() (labels []bool, answers []float32) {
		for range n {
			z := random.NormFloat64()
			labels = append(labels, random.Float64() < sigmoid(z))
			answers = append(answers, float32(math.Round(4*z)/4))
		}
		return labels, answers
	}
	labels, answers := draw()
	c, err := aucComponents(labels, answers)
	if err != nil {
		t.Fatal(err)
	}
	pairs, wins := 0., 0.
	for i := range n {
		for j := range n {
			if labels[i] && !labels[j] {
				pairs++
				if answers[i] > answers[j] {
					wins++
				} else if answers[i] == answers[j] {
					wins += .5
				}
			}
		}
	}
	if math.Abs(c.value-wins/pairs) > 1e-12 {
		t.Errorf("got AUC %v, want %v", c.value, wins/pairs)
	}
	// The error is the spread over many draws.
	var sum, squares, predicted float64
	const draws = 400
	for range draws {
		c, err := aucComponents(draw())
		if err != nil {
			t.Fatal(err)
		}
		sum += c.value
		squares += c.value * c.value
		predicted += math.Sqrt(c.scoreVariance()) / draws
	}
	spread := math.Sqrt(squares/draws - sum/draws*sum/draws)
	if predicted < .85*spread || predicted > 1.15*spread {
		t.Errorf("got error %v, want about the spread of %v", predicted, spread)
	}
	for _, label := range []bool{false, true} {
		if _, err := aucComponents([]bool{label, label}, []float32{1, 2}); err == nil ||
			!strings.Contains(err.Error(), "the AUC needs both") {
			t.Errorf("all labels %v: got error %v", label, err)
		}
	}
	if _, err := aucComponents([]bool{true}, []float32{1, 2}); err == nil ||
		err.Error() != "got 1 labels for 2 rows" {
		t.Errorf("got error %v", err)
	}
}

// A teacher's labels follow its probabilities: a model that answers the same loses nothing, one
// that knows less loses more, and one that guesses has .5.
func TestAgainstTeacher(t *testing.T) {
	best := subject(t, "best", func(x float64) float64 { return sigmoid(2 * x) })
	same := subject(t, "same", func(x float64) float64 { return .5 * sigmoid(2*x) })
	worse := subject(t, "worse", func(x float64) float64 { return math.Round(x) })
	guess := subject(t, "guess", func(x float64) float64 { return math.Mod(1e4*math.Abs(x), 1) })
	rows, err := Draw(best.Version, 20_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	progress := int64(0)
	scores, err := AgainstTeacher(t.Context(), []Subject{best, same, worse, guess}, rows, 1,
		func(done, total int64) {
			if done < progress || total != 80_000 {
				t.Errorf("progress %d of %d", done, total)
			}
			progress = done
		})
	if err != nil {
		t.Fatal(err)
	}
	if progress != 80_000 {
		t.Errorf("progress ended at %d", progress)
	}
	if s := scores[0]; s.Metric != models.AUC || s.Rows != 20_000 || s.Lost != 0 ||
		s.LostError != 0 || s.Value < .8 || s.Error < .001 || s.Error > .01 {
		t.Errorf("got %+v", s)
	}
	if s := scores[1]; s.Value != scores[0].Value || s.LostError != 0 {
		t.Errorf("the same ranks: got %+v, want the score of %+v", s, scores[0])
	}
	if s := scores[2]; s.Lost < 5*s.LostError || s.LostError >= s.Error {
		t.Errorf("worse: got %+v, want it lost, with an error below that of the score", s)
	}
	if s := scores[3]; math.Abs(s.Value-.5) > 4*s.Error {
		t.Errorf("guess: got %+v, want .5", s)
	}
	again, err := AgainstTeacher(t.Context(), []Subject{best}, rows, 1, nil)
	if err != nil || again[0] != scores[0] {
		t.Errorf("the same seed: got %+v, %v, want %+v", again, err, scores[0])
	}
	other, err := AgainstTeacher(t.Context(), []Subject{best}, rows, 2, nil)
	if err != nil || other[0].Value == scores[0].Value {
		t.Errorf("another seed: got %+v, %v", other, err)
	}
}

// Models of a family may have their outputs in another order: each is compared with the one of its
// name.
func TestOrderOfOutputs(t *testing.T) {
	twoOutputs := func(name string, outputs ...string) Subject {
		answers := map[string]Subject{
			"up":   subject(t, name, func(x float64) float64 { return sigmoid(2 * x) }),
			"down": subject(t, name, func(x float64) float64 { return sigmoid(-2 * x) }),
		}
		v := version(name)
		v.Outputs = nil
		for _, o := range outputs {
			v.Outputs = append(v.Outputs, models.TensorSpec{Name: o, DataType: tensor.FP32})
		}
		return Subject{Version: v, Run: func(ctx context.Context, inputs []tensor.Tensor,
			use func([]tensor.Tensor) error) error {
			var all []tensor.Tensor
			for _, o := range outputs {
				if err := answers[o].Run(ctx, inputs, func(out []tensor.Tensor) error {
					all = append(all, out...)
					return nil
				}); err != nil {
					return err
				}
			}
			return use(all)
		}}
	}
	first, other := twoOutputs("first", "up", "down"), twoOutputs("other", "down", "up")
	rows, err := Draw(first.Version, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	taught, err := AgainstTeacher(t.Context(), []Subject{first, other}, rows, 1, nil)
	if err != nil || taught[1].Value != taught[0].Value || taught[1].LostError != 0 {
		t.Errorf("the same answers: got %+v, %v", taught, err)
	}
	missing := twoOutputs("missing", "up", "down")
	missing.Version.Outputs[1].Name = "side"
	if _, err := AgainstTeacher(t.Context(), []Subject{first, missing}, rows, 1, nil); err == nil ||
		err.Error() != `missing version 1 has output "side", first version 1 does not` {
		t.Errorf("another output: got error %v", err)
	}
}

// Without probabilities the score is the share of the teacher's ten best that a model keeps.
func TestTop10(t *testing.T) {
	teacher := subject(t, "teacher", func(x float64) float64 { return 5 * x })
	same := subject(t, "same", func(x float64) float64 { return math.Exp(x) })
	opposite := subject(t, "opposite", func(x float64) float64 { return -x })
	guess := subject(t, "guess", func(x float64) float64 { return math.Mod(1e4*math.Abs(x), 1) })
	rows, err := Draw(teacher.Version, 50_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := AgainstTeacher(t.Context(), []Subject{teacher, same, opposite, guess}, rows, 1,
		nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{1, 1, 0, .1} {
		s := scores[i]
		if s.Metric != models.Top10 || math.Abs(s.Value-want) > 4*s.Error+1e-9 {
			t.Errorf("%s: got %+v, want %v", s.Model, s, want)
		}
	}
	if rows, err = Draw(teacher.Version, 99, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := AgainstTeacher(t.Context(), []Subject{teacher}, rows, 1, nil); err == nil ||
		!strings.Contains(err.Error(), "got 99 rows, expected at least 100") {
		t.Errorf("99 rows: got error %v", err)
	}
}

// Rows do not depend on the batch in which they are asked for; a hundred rows share their users.
func TestDraw(t *testing.T) {
	v := version("m")
	v.Inputs[1] = models.TensorSpec{Name: "id", DataType: tensor.Int64,
		Shape: []int64{models.Dynamic, 2}, IDBounds: []int64{1000, 10}}
	v.Config.Tables = []models.EmbeddingTable{{Name: "mf_user"}, {Name: "mf_item"}}
	rows, err := Draw(v, 1000, 7)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := rows.Batch(v, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range [][2]int{{0, 1}, {150, 401}, {999, 1000}} {
		part, err := rows.Batch(v, cut[0], cut[1]-cut[0])
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range part {
			row := len(whole[i].Data) / 1000
			if !bytes.Equal(x.Data, whole[i].Data[cut[0]*row:cut[1]*row]) ||
				x.Shape[0] != int64(cut[1]-cut[0]) {
				t.Errorf("rows %v of input %d differ from those of the whole", cut, i)
			}
		}
	}
	users, items := map[int64]bool{}, map[int64]bool{}
	for i := range 1000 {
		user, item := elementAsInt(whole[1], 2*i), elementAsInt(whole[1], 2*i+1)
		if user < 0 || user >= 1000 || item < 0 || item >= 10 {
			t.Fatalf("row %d has ids %d and %d", i, user, item)
		}
		users[user], items[item] = true, true
	}
	if len(users) > 10 || len(users) < 9 || len(items) != 10 {
		t.Errorf("got %d users and %d items, want 10 each", len(users), len(items))
	}
	for want, change := range map[string]func(){
		"has no id_bounds in model.yaml": func() { v.Inputs[1].IDBounds = nil },
		"holds BYTES":                    func() { v.Inputs[1].DataType = tensor.Bytes },
		"has shape [-1 -1]":              func() { v.Inputs[1].Shape = []int64{-1, -1} },
	} {
		change()
		if _, err := Draw(v, 10, 1); err == nil || !strings.Contains(err.Error(), "labelled rows") {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// files writes five rows to a CSV and an NPZ file.
func files(t *testing.T) (text, arrays string) {
	dir := t.TempDir()
	text, arrays = filepath.Join(dir, "rows.csv"), filepath.Join(dir, "rows.npz")
	rows := "when,x_0,x_1,label,id\n" +
		"mon,1,.5,1,0\ntue,2,.5,0,1\nwed,-3,.5,0,2\nthu,4,.5,1,8\nfri,5e-1,.5,1,4\n"
	if err := os.WriteFile(text, []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	writeNPZ(t, arrays, nil)
	return text, arrays
}

func writeNPZ(t *testing.T, path string, change func(map[string]*tensor.Tensor)) {
	t.Helper()
	x, err := tensor.Of("x", []float64{1, .5, 2, .5, -3, .5, 4, .5, .5, .5}, 5, 2)
	if err != nil {
		t.Fatal(err)
	}
	id, err := tensor.Of("id", []int32{0, 1, 2, 8, 4}, 5, 1)
	if err != nil {
		t.Fatal(err)
	}
	label, err := tensor.Of("label", []bool{true, false, false, true, true}, 5)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(map[string]*tensor.Tensor{"x": &x, "id": &id, "label": &label})
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := npz.Write(f, []tensor.Tensor{x, id, label}); err != nil {
		t.Fatal(err)
	}
}

func TestReadFile(t *testing.T) {
	v := version("m")
	text, arrays := files(t)
	for _, path := range []string{text, arrays} {
		for limit, n := range map[int]int{0: 5, 2: 2, 9: 5} {
			rows, labels, err := ReadFile(path, v, limit)
			if err != nil {
				t.Fatal(err)
			}
			if rows.Count() != n ||
				!slices.Equal(labels[0], []bool{true, false, false, true, true}[:n]) {
				t.Errorf("%s up to %d: got %d rows with labels %v", path, limit, rows.Count(),
					labels)
			}
			inputs, err := rows.Batch(v, 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			x, err := tensor.Values[float32](inputs[0])
			if err != nil || !slices.Equal(x, []float32{2, .5}) {
				t.Errorf("%s: got x %v, %v", path, x, err)
			}
			id, err := tensor.Values[int64](inputs[1])
			if err != nil || !slices.Equal(id, []int64{1}) {
				t.Errorf("%s: got id %v, %v", path, id, err)
			}
		}
	}
	rows, labels, err := ReadFile(text, v, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := subject(t, "m", func(x float64) float64 { return x })
	scores, err := AgainstLabels(t.Context(), []Subject{s}, rows, labels, nil)
	if want := 4. / 6; err != nil || math.Abs(scores[0].Value-want) > 1e-12 {
		t.Errorf("got %+v, %v, want AUC %v", scores, err, want)
	}
}

func TestReadFileFaults(t *testing.T) {
	v := version("m")
	dir := t.TempDir()
	for text, want := range map[string]string{
		"":                              "it has no header",
		"x_0,x_1,id\n1,2,3\n":           `the header has no column "label"`,
		"x_0,label,id\n1,1,3\n":         `the header has no column "x_1"`,
		"id,id\n":                       `the header has column "id" twice`,
		"x_0,x_1,id,label\n":            "it has no rows",
		"x_0,x_1,id,label\n1,2,3\n":     "wrong number of fields",
		"x_0,x_1,id,label\n1,2,3,2\n":   "the label of row 0 is 2, expected 0 or 1",
		"x_0,x_1,id,label\n1,2,3,yes\n": `line 2: label is "yes", expected 0 or 1`,
		"x_0,x_1,id,label\n1,2,3,\n":    `line 2: label is "", expected 0 or 1`,
		"x_0,x_1,id,label\n1,2,.5,0\n":  `line 2: id is ".5", expected INT64`,
		"x_0,x_1,id,label\n1,2,9,0\n":   `row 0: input "id" has id 9, expected at least 0 and less than 9`,
		"x_0,x_1,id,label\n1,2,-1,0\n":  `row 0: input "id" has id -1`,
	} {
		path := filepath.Join(dir, "rows.csv")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadFile(path, v, 0); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%q: got error %v, want one with %q", text, err, want)
		}
	}
	path := filepath.Join(dir, "rows.npz")
	for want, change := range map[string]func(map[string]*tensor.Tensor){
		`array "x" has 5 rows, but there are 4 labels`: func(a map[string]*tensor.Tensor) {
			a["label"].Shape[0], a["label"].Data = 4, a["label"].Data[:4]
		},
		"it has 5 labels a row, m version 1 has 1 outputs": func(a map[string]*tensor.Tensor) {
			a["label"].Shape = []int64{1, 5}
			a["x"].Shape = []int64{1, 2}
			a["x"].Data = a["x"].Data[:16]
			a["id"].Shape, a["id"].Data = []int64{1, 1}, a["id"].Data[:4]
		},
		`it has no array "x", only y, id, label`: func(a map[string]*tensor.Tensor) {
			a["x"].Name = "y"
		},
		`array "x" has shape [5 2 1], expected [-1 2]`: func(a map[string]*tensor.Tensor) {
			a["x"].Shape = []int64{5, 2, 1}
		},
		`array "x" holds INT64, expected FP32`: func(a map[string]*tensor.Tensor) {
			a["x"].DataType = tensor.Int64
		},
		`array "id" holds FP16, expected INT64`: func(a map[string]*tensor.Tensor) {
			a["id"].DataType, a["id"].Data = tensor.FP16, make([]byte, 10)
		},
		`array "label" holds FP16, expected numbers 0 or 1, or bools`: func(
			a map[string]*tensor.Tensor) {
			a["label"].DataType, a["label"].Data = tensor.FP16, make([]byte, 10)
		},
		`array "label": shape (0,) has no rows`: func(a map[string]*tensor.Tensor) {
			a["label"].Shape[0], a["label"].Data = 0, nil
		},
		`array "id": 20 bytes, expected 6 elements of 4 bytes for shape [6 1]`: func(
			a map[string]*tensor.Tensor) {
			a["id"].Shape[0] = 6
		},
	} {
		writeNPZ(t, path, change)
		if _, _, err := ReadFile(path, v, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	words := version("words")
	words.Inputs[0].DataType = tensor.Bytes
	if _, _, err := ReadFile(path, words, 0); err == nil ||
		!strings.Contains(err.Error(), `input "x" of words version 1 takes strings`) {
		t.Errorf("strings: got error %v", err)
	}
	if _, _, err := ReadFile("rows.txt", v, 0); err == nil ||
		!strings.Contains(err.Error(), "expected .csv or .npz") {
		t.Errorf("rows.txt: got error %v", err)
	}
	if _, _, err := ReadFile(filepath.Join(dir, "none.npz"), v, 0); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no file: got error %v", err)
	}
}

// TestConverted: integers of a file become those of the model's type, and one that this type does
// not have is an error.
func TestConverted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.npz")
	of := func(x tensor.Tensor, err error) tensor.Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, tt := range []struct {
		is   tensor.DataType // of the model
		id   tensor.Tensor   // of the file
		want string
	}{
		{tensor.Int64, of(tensor.Of("id", []uint64{0, 1, 2, 8, 1<<63 + 4}, 5, 1)),
			`array "id": element 4 is 9223372036854775812, which is no INT64`},
		{tensor.Uint64, of(tensor.Of("id", []int64{0, 1, 2, 8, -1}, 5, 1)),
			`array "id": element 4 is -1, which is no UINT64`},
		{tensor.Bool, of(tensor.Of("id", []uint8{0, 1, 2, 0, 0}, 5, 1)),
			`array "id": element 2 is 2, which is no BOOL`},
		{tensor.Uint64, of(tensor.Of("id", []int8{0, 1, 2, 8, 4}, 5, 1)), ""},
		{tensor.Bool, of(tensor.Of("id", []int64{0, 1, 1, 0, 1}, 5, 1)), ""},
	} {
		v := version("m")
		v.Inputs[1].DataType, v.Inputs[1].IDBounds = tt.is, nil
		writeNPZ(t, path, func(a map[string]*tensor.Tensor) { *a["id"] = tt.id })
		_, _, err := ReadFile(path, v, 0)
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s as %s: got error %v, want %q", tt.id.DataType, tt.is, err, tt.want)
		}
	}
}

// TestNoColumns: rows without ids have none out of bounds.
func TestNoColumns(t *testing.T) {
	v := version("m")
	v.Inputs[1].Shape[1] = models.Dynamic
	path := filepath.Join(t.TempDir(), "rows.npz")
	writeNPZ(t, path, func(a map[string]*tensor.Tensor) {
		a["id"].Shape, a["id"].Data = []int64{5, 0}, nil
	})
	rows, _, err := ReadFile(path, v, 0)
	if err != nil || rows.Count() != 5 {
		t.Errorf("got %v, %v", rows, err)
	}
}

// A model that fails, or answers NaN, is named.
func TestRunFaults(t *testing.T) {
	rows, err := Draw(version("m"), 700, 1)
	if err != nil {
		t.Fatal(err)
	}
	nan := subject(t, "nan", func(float64) float64 { return math.NaN() })
	failing := nan
	failing.Run = func(context.Context, []tensor.Tensor, func([]tensor.Tensor) error) error {
		return errors.New("broken")
	}
	for want, s := range map[string]Subject{
		`run nan version 1 on rows 0 to 499: output "p" of row 0 is NaN`: nan,
		"broken": failing,
	} {
		if _, err := AgainstTeacher(t.Context(), []Subject{s}, rows, 1, nil); err == nil ||
			!strings.Contains(err.Error(), want) &&
				!strings.Contains(err.Error(), "rows 500 to 699") {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}
