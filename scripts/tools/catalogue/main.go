// Command catalogue writes profiles/catalogue.csv, the instance types that Muster
// knows. It takes them from two public data sets that are published as Go modules, and
// names these in profiles/CATALOGUE-SOURCE:
//
//   - github.com/aws/karpenter-provider-aws has on-demand prices and GPUs;
//   - github.com/cristim/ec2-instances-info has vCPUs, memory and families.
//
// The catalogue has the types of the present generations of the families c, g, gr, m, r and t, and
// p3.2xlarge, which KAIROS compares with. A type that has a price but is too new for the second
// data set has no vCPUs and no memory. Nothing is added by hand. For newer data, raise the versions
// below and run this in the repository's root:
//
//	go run ./scripts/tools/catalogue
package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/profiles"
)

// The data sets.
const (
	priceModule     = "github.com/aws/karpenter-provider-aws"
	priceVersion    = "v1.15.1"
	hardwareModule  = "github.com/cristim/ec2-instances-info"
	hardwareVersion = "v0.0.0-20250528091325-32acf84f42eb"
	region          = "us-east-1"
)

var (
	families = regexp.MustCompile(`^(c|g|gr|m|r|t)\d`)
	alsoWant = []string{"p3.2xlarge"}
)

func main() {
	if err := run("profiles/catalogue.csv", "profiles/CATALOGUE-SOURCE"); err != nil {
		fmt.Fprintln(os.Stderr, "catalogue:", err)
		os.Exit(1)
	}
}

func run(catalogue, source string) error {
	prices, err := download(priceModule, priceVersion)
	if err != nil {
		return err
	}
	defer prices.Close()
	hardware, err := download(hardwareModule, hardwareVersion)
	if err != nil {
		return err
	}
	defer hardware.Close()
	d, err := read(prices, hardware)
	if err != nil {
		return err
	}
	types, without, err := d.merge()
	if err != nil {
		return err
	}
	out, err := write(types)
	if err != nil {
		return err
	}
	if err := os.WriteFile(catalogue, out, 0o644); err != nil {
		return err
	}
	return os.WriteFile(source, d.sourceText(types, without), 0o644)
}

// A module is the unpacked zip of one version of a Go module.
type module struct {
	*zip.ReadCloser
	name, version string
}

// download fetches a module with the go command, which verifies its checksum. The module may need a
// newer Go: nothing of it is compiled.
func download(name, version string) (*module, error) {
	cmd := exec.Command("go", "mod", "download", "-json", name+"@"+version)
	cmd.Dir = os.TempDir()
	out, failed := cmd.Output()
	var found struct{ Zip, Error string }
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("download %s@%s: %w", name, version, errors.Join(failed, err))
	}
	if found.Zip == "" {
		return nil, fmt.Errorf("download %s@%s: %s", name, version, found.Error)
	}
	z, err := zip.OpenReader(found.Zip)
	if err != nil {
		return nil, fmt.Errorf("download %s@%s: %w", name, version, err)
	}
	return &module{z, name, version}, nil
}

// readFile reads one of the module's files.
func (m *module) readFile(name string) ([]byte, error) {
	f, err := m.Open(path.Join(m.name+"@"+m.version, name))
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", m.name, m.version, err)
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Hardware is what the second data set says about a type.
type hardware struct {
	Type       string  `json:"instance_type"`
	Family     string  `json:"family"`
	Generation string  `json:"generation"` // current or previous
	VCPUs      int     `json:"vCPU"`
	Memory     float64 `json:"memory"` // GiB
	GPU        string  `json:"GPU_model"`
}

// data is what both data sets say, by type.
type data struct {
	price    map[string]float64 // $/hr
	priced   string             // when the prices were read
	gpu      map[string]string
	hardware map[string]hardware
	notice   string // Karpenter's
	licence  string // of ec2instances.info's data
}

func read(prices, info *module) (*data, error) {
	d := &data{hardware: map[string]hardware{}}
	text, err := prices.readFile("pkg/providers/pricing/zz_generated.pricing_aws.go")
	if err != nil {
		return nil, err
	}
	if d.price, d.priced, err = readPrices(text); err != nil {
		return nil, fmt.Errorf("%s: %w", priceModule, err)
	}
	if text, err = prices.readFile("pkg/providers/drametadata/zz_generated_gpu_metadata.go"); err !=
		nil {
		return nil, err
	}
	if d.gpu, err = readGPUs(text); err != nil {
		return nil, fmt.Errorf("%s: %w", priceModule, err)
	}
	if text, err = prices.readFile("NOTICE"); err != nil {
		return nil, err
	}
	d.notice = strings.TrimSpace(string(text))
	if text, err = info.readFile("data/instances.json"); err != nil {
		return nil, err
	}
	var all []hardware
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", hardwareModule, err)
	}
	for _, h := range all {
		d.hardware[h.Type] = h
	}
	if text, err = info.readFile("LICENSE"); err != nil {
		return nil, err
	}
	at := bytes.Index(text, []byte("Copyright (c)"))
	if at < 0 {
		return nil, fmt.Errorf("%s: no copyright of the data in its LICENSE", hardwareModule)
	}
	d.licence = strings.TrimSpace(string(text[at:]))
	return d, nil
}

// readPrices reads the region's prices and when they were read from Karpenter's generated code.
func readPrices(source []byte) (prices map[string]float64, when string, err error) {
	if m := regexp.MustCompile(`generated at (\d{4}-\d\d-\d\d)`).FindSubmatch(source); m != nil {
		when = string(m[1])
	}
	prices = map[string]float64{}
	err = literals(source, func(kv *ast.KeyValueExpr) {
		if inner, ok := kv.Value.(*ast.CompositeLit); ok && text(kv.Key) == region {
			for _, e := range inner.Elts {
				one := e.(*ast.KeyValueExpr)
				prices[text(one.Key)], _ = strconv.ParseFloat(one.Value.(*ast.BasicLit).Value, 64)
			}
		}
	})
	if err == nil && (len(prices) == 0 || when == "") {
		err = fmt.Errorf("no prices of %s, or no date", region)
	}
	return prices, when, err
}

// readGPUs reads the name of each type's GPU from Karpenter's generated code.
func readGPUs(source []byte) (map[string]string, error) {
	names := map[string]string{}
	err := literals(source, func(kv *ast.KeyValueExpr) {
		ast.Inspect(kv.Value, func(n ast.Node) bool {
			if one, ok := n.(*ast.KeyValueExpr); ok && text(one.Key) == "productName" {
				ast.Inspect(one.Value, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok {
						names[text(kv.Key)] = text(lit)
					}
					return true
				})
			}
			return true
		})
	})
	return names, err
}

// literals visits the entries of every map literal that is the value of a package variable.
func literals(source []byte, visit func(*ast.KeyValueExpr)) error {
	file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		if vars, ok := decl.(*ast.GenDecl); ok && vars.Tok == token.VAR {
			for _, spec := range vars.Specs {
				for _, value := range spec.(*ast.ValueSpec).Values {
					if lit, ok := value.(*ast.CompositeLit); ok {
						for _, e := range lit.Elts {
							if kv, ok := e.(*ast.KeyValueExpr); ok {
								visit(kv)
							}
						}
					}
				}
			}
		}
	}
	return nil
}

// text is the value of a string literal; "" for any other expression.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}

// classOf is the class of each of the second data set's families. Types with a GPU have another.
var classOf = map[string]profiles.Class{
	"General purpose":   profiles.GeneralPurpose,
	"Compute optimized": profiles.ComputeOptimized,
	"Memory optimized":  profiles.MemoryOptimized,
}

// merge returns the types that have a price, and the names of those that are left out because
// neither data set names their GPU. A type that is too new for the second data set gets the class
// of the other types with the same letters.
func (d *data) merge() (types []profiles.Instance, without []string, err error) {
	class := map[string]profiles.Class{} // by the letters of the family
	for name, h := range d.hardware {
		if c, ok := classOf[h.Family]; ok && h.GPU == "" && families.MatchString(name) &&
			h.Generation == "current" {
			if before, twice := class[letters(name)]; twice && before != c {
				return nil, nil, fmt.Errorf("%s is %s, other types of its letters are %s", name, c,
					before)
			}
			class[letters(name)] = c
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.price)) {
		h, known := d.hardware[name]
		if !slices.Contains(alsoWant, name) && (!families.MatchString(name) ||
			known && h.Generation != "current") {
			continue
		}
		t := profiles.Instance{
			Type: profiles.InstanceType(name), PriceUSDPerHour: d.price[name], VCPUs: h.VCPUs,
			MemoryGiB: h.Memory,
			GPU:       cmp.Or(h.GPU, d.gpu[name]), Class: class[letters(name)],
		}
		if t.GPU != "" {
			t.Class = profiles.Accelerated
		} else if t.Class == "" {
			without = append(without, name)
			continue
		}
		types = append(types, t)
	}
	slices.SortFunc(types, func(a, b profiles.Instance) int {
		family := func(t profiles.InstanceType) string {
			f, _, _ := strings.Cut(string(t), ".")
			return f
		}
		return cmp.Or(cmp.Compare(family(a.Type), family(b.Type)),
			cmp.Compare(a.PriceUSDPerHour, b.PriceUSDPerHour), cmp.Compare(a.Type, b.Type))
	})
	return types, without, nil
}

// letters returns the letters with which a type's name begins, such as "c" of c5a.4xlarge.
func letters(name string) string { return name[:strings.IndexAny(name, "0123456789")] }

// write writes the catalogue as CSV. A value that is not known is empty.
func write(types []profiles.Instance) ([]byte, error) {
	rows := [][]string{{"type", "price_usd_per_hour", "vcpus", "memory_gib", "class", "gpu"}}
	number := func(x float64) string {
		if x == 0 {
			return ""
		}
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	for _, t := range types {
		rows = append(rows, []string{
			string(t.Type), number(t.PriceUSDPerHour), number(float64(t.VCPUs)),
			number(t.MemoryGiB), string(t.Class), t.GPU,
		})
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(rows)
	return b.Bytes(), err
}

// sourceText is the text of CATALOGUE-SOURCE, which NOTICE takes up.
func (d *data) sourceText(types []profiles.Instance, without []string) []byte {
	bare := 0
	for _, t := range types {
		if t.VCPUs == 0 {
			bare++
		}
	}
	left := "no type"
	if len(without) > 0 {
		left = strings.Join(without, ", ")
	}
	return fmt.Appendf(
		nil,
		`profiles/catalogue.csv, embedded in the program, is made by scripts/tools/catalogue from
two data sets.

1. %s %s (Go module), Apache License 2.0:
   on-demand prices of %s, Linux, as of %s, and names of GPUs.

%s

2. %s %s
   (Go module, the data of ec2instances.info), MIT License: vCPUs, memory, families and names of GPUs.

%s

It has %d types, %d of them without vCPUs and memory because they are newer than the second set.
Left out, because neither set says which GPU they have: %s.
`, priceModule, priceVersion, region, d.priced, indent(d.notice), hardwareModule, hardwareVersion, indent(d.licence),
		len(types), bare, left)
}

func indent(text string) string {
	return "   " + strings.ReplaceAll(strings.ReplaceAll(text, "\n", "\n   "), "\n   \n", "\n\n")
}
