package muster_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Names that users, other versions and other programs know are frozen: testdata/frozen lists those of
// the commit 958423c, the first whose agents, SDKs and files later versions work with. A name may be
// added and never be removed. After a release, freeze its names too:
//
//	go test . -run TestFrozenNames -freeze .
//
// The difference of the lists then only adds lines.
var freeze = flag.String("freeze", "", "write testdata/frozen anew from this checkout")

// frozen are the lists, by file name: how the names of a checkout are collected, and whether its
// names have one of the list.
var frozen = []struct {
	name    string
	collect func(*checkout, *testing.T) []string
	has     func(names map[string]bool, name string) bool
}{
	{"sdk", (*checkout).sdkNames, hasName},
	{"wire", (*checkout).wireNames, hasName},
	{"metrics", (*checkout).metricNames, hasName},
	{"events", (*checkout).eventNames, hasName},
	{"log", (*checkout).logKeys, hasName},
	{"keys", (*checkout).documentKeys, hasKeys},
}

// TestFrozenNames: the names that were frozen are still there. Those of commands and flags are held
// by cmd/muster's test of the same name.
func TestFrozenNames(t *testing.T) {
	root := "."
	if *freeze != "" {
		root = *freeze
	}
	c := parseCheckout(t, root)
	for _, list := range frozen {
		t.Run(list.name, func(t *testing.T) {
			path := filepath.Join("testdata", "frozen", list.name+".txt")
			names := map[string]bool{}
			for _, name := range list.collect(c, t) {
				names[name] = true
			}
			if *freeze != "" {
				text := strings.Join(slices.Sorted(maps.Keys(names)), "\n") + "\n"
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for name := range strings.Lines(string(text)) {
				name = strings.TrimSuffix(name, "\n")
				if has := list.has(names, name); !has && gone[name] == "" {
					t.Errorf("it was removed or changed, and others rely on it:\n%s", name)
				} else if has && gone[name] != "" && *freeze == "" {
					t.Errorf("it is there, take it off gone:\n%s", name)
				}
			}
		})
	}
}

// gone are names that were removed on purpose since, by why.
var gone = map[string]string{
	"json: Ahead Policy Seed Self Threshold": "the policy drs, which reproduce has, read the threshold",
	"json: static_allocation":                "reproduce reads the papers' data",
	"yaml: region subnets template template_version": "cloud/policy reads these keys of fleet.yaml, " +
		"and muster-ec2 gets them as JSON",
}

func hasName(names map[string]bool, name string) bool { return names[name] }

// hasKeys reports whether a document has all keys of the frozen one, and maybe more.
func hasKeys(documents map[string]bool, frozen string) bool {
	if documents[frozen] {
		return true
	}
	for document := range documents {
		has := strings.Fields(document)
		if !slices.ContainsFunc(strings.Fields(frozen),
			func(key string) bool { return !slices.Contains(has, key) }) {
			return true
		}
	}
	return false
}

// A checkout is the parsed source of the product without its tests, by path from the root.
type checkout struct {
	root  string
	files map[string]*ast.File
	set   *token.FileSet
}

func parseCheckout(t *testing.T, root string) *checkout {
	t.Helper()
	c := &checkout{root, map[string]*ast.File{}, token.NewFileSet()}
	for _, folder := range []string{
		"agent", "api", "client", "cloud", "cmd", "gossip", "leader", "models", "profiles", "runtime",
		"sim",
	} {
		eachFile(t, filepath.Join(root, folder), parser.SkipObjectResolution,
			func(path string, _ *token.FileSet, _ *ast.File) {
				file, err := parser.ParseFile(c.set, path, nil, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				name, err := filepath.Rel(root, path)
				if err != nil {
					t.Fatal(err)
				}
				c.files[filepath.ToSlash(name)] = file
			})
	}
	return c
}

// text prints a node on one line.
func (c *checkout) text(n ast.Node) string {
	var b strings.Builder
	_ = printer.Fprint(&b, c.set, n) // a strings.Builder takes all
	return strings.Join(strings.Fields(b.String()), " ")
}

// typeText prints a type without the names of parameters, which callers do not see.
func (c *checkout) typeText(of ast.Expr) string {
	switch of := of.(type) {
	case nil:
		return ""
	case *ast.FuncType:
		return "func" + c.signature(of)
	case *ast.StarExpr:
		return "*" + c.typeText(of.X)
	case *ast.ArrayType:
		length := ""
		if of.Len != nil {
			length = c.text(of.Len)
		}
		return "[" + length + "]" + c.typeText(of.Elt)
	case *ast.MapType:
		return "map[" + c.typeText(of.Key) + "]" + c.typeText(of.Value)
	case *ast.Ellipsis:
		return "..." + c.typeText(of.Elt)
	}
	return c.text(of)
}

func (c *checkout) signature(of *ast.FuncType) string {
	list := func(fields *ast.FieldList) string {
		var types []string
		if fields != nil {
			for _, f := range fields.List {
				for range max(1, len(f.Names)) {
					types = append(types, c.typeText(f.Type))
				}
			}
		}
		return "(" + strings.Join(types, ", ") + ")"
	}
	if of.Results == nil {
		return list(of.Params)
	}
	return list(of.Params) + " " + list(of.Results)
}

// sdkNames are what the SDK's packages export, with types: a program that uses them still compiles.
func (c *checkout) sdkNames(*testing.T) (names []string) {
	for path, file := range c.files {
		switch folder := filepath.ToSlash(filepath.Dir(path)); folder {
		case "client", "api/oip", "api/tensor":
			for _, decl := range file.Decls {
				for _, name := range c.exported(decl) {
					names = append(names, folder+": "+name)
				}
			}
		}
	}
	return names
}

func (c *checkout) exported(decl ast.Decl) (names []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() {
			return nil
		}
		on := ""
		if d.Recv != nil {
			if !ast.IsExported(receiver(d.Recv.List[0].Type)) {
				return nil
			}
			on = "(" + c.text(d.Recv.List[0].Type) + ") "
		}
		return []string{"func " + on + d.Name.Name + c.signature(d.Type)}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					if name.IsExported() {
						names = append(names, strings.TrimSpace(
							d.Tok.String()+" "+name.Name+" "+c.typeText(s.Type)))
					}
				}
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					names = append(names, c.exportedType(s)...)
				}
			}
		}
	}
	return names
}

func (c *checkout) exportedType(s *ast.TypeSpec) (names []string) {
	name := "type " + s.Name.Name
	switch t := s.Type.(type) {
	case *ast.StructType:
		names = append(names, name+" struct")
		for _, field := range t.Fields.List {
			for _, f := range field.Names {
				if f.IsExported() {
					names = append(names, name+" field "+f.Name+" "+c.typeText(field.Type))
				}
			}
			if len(field.Names) == 0 {
				names = append(names, name+" embeds "+c.text(field.Type))
			}
		}
	case *ast.InterfaceType: // who implements it cannot have more methods either
		var methods []string
		for _, m := range t.Methods.List {
			if f, ok := m.Type.(*ast.FuncType); ok {
				methods = append(methods, m.Names[0].Name+c.signature(f))
			} else {
				methods = append(methods, c.text(m.Type))
			}
		}
		slices.Sort(methods)
		names = append(names, name+" interface "+strings.Join(methods, "; "))
	default:
		names = append(names, name+" "+c.typeText(s.Type))
	}
	return names
}

// wireNames are the messages, fields, enums and calls of the protocols, with numbers and types.
func (c *checkout) wireNames(t *testing.T) (names []string) {
	for path, file := range c.files {
		if !strings.HasSuffix(path, ".pb.go") || strings.HasSuffix(path, "_grpc.pb.go") {
			continue
		}
		var of descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal([]byte(descriptor(t, file)), &of); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		prefix := of.GetPackage() + "."
		for _, m := range of.GetMessageType() {
			names = append(names, messageNames(prefix, m)...)
		}
		for _, e := range of.GetEnumType() {
			names = append(names, enumNames(prefix, e)...)
		}
		for _, s := range of.GetService() {
			for _, m := range s.GetMethod() {
				names = append(names, fmt.Sprintf("%s%s.%s(%s, stream %t) (%s, stream %t)", prefix,
					s.GetName(), m.GetName(), m.GetInputType(), m.GetClientStreaming(),
					m.GetOutputType(), m.GetServerStreaming()))
			}
		}
	}
	return names
}

// descriptor is the constant of a generated file that describes it, as protobuf encodes it.
func descriptor(t *testing.T, file *ast.File) (raw string) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasSuffix(spec.Names[0].Name, "_rawDesc") {
			return true
		}
		ast.Inspect(spec.Values[0], func(n ast.Node) bool {
			if part, ok := n.(*ast.BasicLit); ok {
				text, err := strconv.Unquote(part.Value)
				if err != nil {
					t.Fatal(err)
				}
				raw += text
			}
			return true
		})
		return false
	})
	return raw
}

func messageNames(prefix string, m *descriptorpb.DescriptorProto) []string {
	names := []string{"message " + prefix + m.GetName()}
	prefix += m.GetName() + "."
	for _, f := range m.GetField() {
		oneof := ""
		if f.OneofIndex != nil && !f.GetProto3Optional() {
			oneof = " of " + m.GetOneofDecl()[f.GetOneofIndex()].GetName()
		}
		names = append(names, fmt.Sprintf("%s%s = %d %v %v %s optional %t%s", prefix, f.GetName(),
			f.GetNumber(), f.GetLabel(), f.GetType(), f.GetTypeName(), f.GetProto3Optional(), oneof))
	}
	for _, nested := range m.GetNestedType() {
		names = append(names, messageNames(prefix, nested)...)
	}
	for _, e := range m.GetEnumType() {
		names = append(names, enumNames(prefix, e)...)
	}
	return names
}

func enumNames(prefix string, e *descriptorpb.EnumDescriptorProto) (names []string) {
	for _, v := range e.GetValue() {
		names = append(names,
			fmt.Sprintf("enum %s%s.%s = %d", prefix, e.GetName(), v.GetName(), v.GetNumber()))
	}
	return names
}

var documentedMetric = regexp.MustCompile("(?m)^\\| `(muster_\\w+)` \\| (\\w+) \\| ([^|]*)\\|")

// metricNames are the metrics with their types and labels. The agent's tests hold the page that
// lists them against what agents serve.
func (c *checkout) metricNames(t *testing.T) (names []string) {
	text, err := os.ReadFile(filepath.Join(c.root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range documentedMetric.FindAllStringSubmatch(string(text), -1) {
		names = append(names, strings.TrimSpace(m[1]+" "+m[2]+" "+m[3]))
	}
	return names
}

// eventNames are the kinds of events, the words by which programs know an event of a kind, and the
// keys of its details.
func (c *checkout) eventNames(*testing.T) (names []string) {
	for _, file := range c.files {
		for _, decl := range file.Decls {
			c.eachLogCall(decl, func(what string, attributes []ast.Expr) {
				kind := ""
				for i, key := range attributes[:max(0, len(attributes)-1)] {
					if name := c.text(key); name == "eventKey" || name == `"event"` {
						kind = literal(attributes[i+1])
					}
				}
				if kind == "" {
					return
				}
				names = append(names, kind, strings.TrimSpace(kind+": "+what))
				for _, key := range c.keysOf(attributes) {
					names = append(names, fmt.Sprintf("%s: %s: %s", kind, what, key))
				}
			})
		}
	}
	return names
}

var logKey = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// logKeys are the keys of attributes in log lines, which are those of events' details too.
func (c *checkout) logKeys(*testing.T) (names []string) {
	for _, file := range c.files {
		for _, decl := range file.Decls {
			c.eachLogCall(decl, func(_ string, attributes []ast.Expr) {
				names = append(names, c.keysOf(attributes)...)
			})
		}
	}
	return names
}

// keysOf are the fixed keys of attributes: keys and values take turns.
func (c *checkout) keysOf(attributes []ast.Expr) (keys []string) {
	for i := 0; i < len(attributes); i++ {
		switch key := literal(attributes[i]); {
		case logKey.MatchString(key):
			keys = append(keys, key)
			i++ // its value
		case c.text(attributes[i]) == "eventKey":
			i++
		}
	}
	return keys
}

// eachLogCall calls found for each call that logs a line or prepares its attributes, with the
// words, if they are fixed, and the attributes. A variable made by With has its keys in the calls on
// it.
func (c *checkout) eachLogCall(decl ast.Decl, found func(what string, attributes []ast.Expr)) {
	with := map[string][]ast.Expr{}
	ast.Inspect(decl, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == 1 {
			if call, ok := set.Rhs[0].(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "With" {
					with[c.text(set.Lhs[0])] = call.Args
				}
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "append" && len(call.Args) > 1 {
			if strings.HasPrefix(c.text(call.Args[0]), "attr") {
				found("", call.Args[1:])
			}
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		args := call.Args
		switch name := f.Sel.Name; {
		case name == "With":
			found("", args)
			return true
		case slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name) && len(args) > 0:
		case name == "Log" && len(args) > 2:
			args = args[2:]
		case name == "logRequest" && len(args) > 3:
			args = slices.Concat([]ast.Expr{args[2], ast.NewIdent("eventKey"), args[1]}, args[4:])
		default:
			return true
		}
		found(literal(args[0]), slices.Concat(args[1:], with[c.text(f.X)]))
		return true
	})
}

// literal is the value of a string literal, "" for anything else.
func literal(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, _ := strconv.Unquote(lit.Value) // the parser has checked it
		return text
	}
	return ""
}

// documentKeys are, for each struct that a file, an output or a call has as JSON or YAML, its keys on
// one line. So a struct may get another name, and more keys.
func (c *checkout) documentKeys(*testing.T) (names []string) {
	for path, file := range c.files {
		if strings.HasSuffix(path, ".pb.go") { // see wireNames
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.StructType); ok {
				for _, format := range []string{"json", "yaml"} {
					if keys := structKeys(s, format); len(keys) > 0 {
						names = append(names, format+": "+strings.Join(keys, " "))
					}
				}
			}
			return true
		})
	}
	return names
}

// structKeys are the keys of a struct in a format, sorted; none if no field has a tag for it.
func structKeys(s *ast.StructType, format string) (keys []string) {
	tagged := false
	for _, field := range s.Fields.List {
		tag := ""
		if field.Tag != nil {
			text, _ := strconv.Unquote(field.Tag.Value) // the parser has checked it
			value, ok := reflect.StructTag(text).Lookup(format)
			tagged = tagged || ok
			tag, _, _ = strings.Cut(value, ",")
		}
		for _, name := range field.Names {
			switch {
			case tag == "-" || !name.IsExported():
			case tag != "":
				keys = append(keys, tag)
			default:
				keys = append(keys, name.Name)
			}
		}
	}
	if !tagged {
		return nil
	}
	slices.Sort(keys)
	return keys
}
