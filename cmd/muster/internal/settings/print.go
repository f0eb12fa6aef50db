package settings

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/gossip"
)

// A secretValue replaces the value of a setting that must not be shown.
type secretValue struct{}

// isSecret reports whether the setting's value is a secret itself. The path of a file that holds a
// secret is none.
func isSecret(f *pflag.Flag) bool {
	switch f.Name {
	case "api-key":
		return f.Value.String() != ""
	case "gossip-key":
		_, err := gossip.ParseKey(f.Value.String())
		return err == nil
	}
	return false
}

// eachSetting calls print for each setting of flags in the order of their names. A value is a
// string, a []string or a secretValue. origins is what Resolve returned.
func eachSetting(flags *pflag.FlagSet, origins map[string]string,
	print func(name string, value any)) {
	flags.VisitAll(func(f *pflag.Flag) {
		if _, ok := origins[f.Name]; !ok {
			return
		}
		if isSecret(f) {
			print(f.Name, secretValue{})
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			print(f.Name, list.GetSlice())
			return
		}
		print(f.Name, f.Value.String())
	})
}

// WriteYAML writes the settings of flags as a config file, each with its origin as a comment.
// origins is what Resolve returned. Secrets are left out.
func WriteYAML(w io.Writer, flags *pflag.FlagSet, origins map[string]string) error {
	document := yaml.Node{Kind: yaml.MappingNode}
	var secrets []string
	eachSetting(flags, origins, func(name string, value any) {
		var key, v yaml.Node
		key.SetString(name)
		switch value := value.(type) {
		case []string:
			v = yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, s := range value {
				v.Content = append(v.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: s})
			}
		case string:
			v = yaml.Node{Kind: yaml.ScalarNode, Value: value}
			if value == "" {
				v.Style = yaml.DoubleQuotedStyle
			}
		case secretValue:
			secrets = append(secrets,
				fmt.Sprintf("# %s: a secret, not shown # %s", name, origins[name]))
			return
		}
		v.LineComment = origins[name]
		document.Content = append(document.Content, &key, &v)
	})
	data, err := yaml.Marshal(&document)
	if err != nil {
		return err
	}
	for _, s := range secrets {
		data = append(data, s+"\n"...)
	}
	_, err = w.Write(data)
	return err
}

// A Setting is the value of a setting, and where it comes from. Value is a string or a []string;
// nil for a secret.
type Setting struct {
	Name   string `json:"name"`
	Value  any    `json:"value"`
	Secret bool   `json:"secret,omitempty"`
	From   string `json:"from"`
}

// List returns the settings of flags in the order of their names. origins is what Resolve returned.
func List(flags *pflag.FlagSet, origins map[string]string) (all []Setting) {
	eachSetting(flags, origins, func(name string, value any) {
		s := Setting{Name: name, Value: value, From: origins[name]}
		if _, s.Secret = value.(secretValue); s.Secret {
			s.Value = nil
		}
		all = append(all, s)
	})
	return all
}
