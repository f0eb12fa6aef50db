package remote

import (
	"strings"
	"testing"
)

// TestCheck: what cannot be the URL of a store is named.
func TestCheck(t *testing.T) {
	for address, says := range map[string]string{
		"s3://models":               "",
		"s3://models/prod?region=x": "",
		"gs://models/prod":          "",
		"azblob://models":           "",
		"file:///srv/models":        "",
		"models":                    `has the scheme ""`,
		"ftp://models":              `has the scheme "ftp"`,
		"s3:///prod":                "names no bucket",
		"file://srv/models":         "expected file:///PATH",
		"s3://key:secret@models":    "credentials come from where",
		"s3://%zz":                  "invalid URL escape",
	} {
		err := Check(address)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", address, err, says)
		}
	}
}
