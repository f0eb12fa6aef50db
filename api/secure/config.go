package secure

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
)

// A Config says how a server authenticates itself and its callers. The zero value means no
// encryption, and callers that need no name. All files are named by their paths.
type Config struct {
	// CertFile and KeyFile are the server's certificate, with the intermediate ones up to its CA,
	// and its private key, in PEM; both or neither. With them, all servers accept only TLS.
	CertFile, KeyFile string
	// CAFile has the certificates of the fleet's CA, in PEM: agents trust certificates of this CA
	// from each other.
	CAFile string
	// ClientCAFile has the certificates of the clients' CA, in PEM; empty means CAFile. If it is
	// set, clients need a certificate or an API key.
	ClientCAFile string
	// CRLFile has revocation lists of the CAs in CAFile and ClientCAFile, in PEM; empty means none.
	// A list stays in force after the time by which it should have been renewed.
	CRLFile string
	// RequireClientCert refuses connections without a client's certificate.
	RequireClientCert bool
	// APIKeysFile maps API keys to clients ([ParseKeys]). If it is set, clients need a certificate
	// or an API key.
	APIKeysFile string
	// AccessFile says what each client may do ([ParseAccess]); empty means
	// [DefaultAccess]. If it is set, clients need a certificate, an API key or a token.
	AccessFile string
}

// Validate returns all faults of c joined in one error, by the names of the agent's flags, or nil.
// It opens no file.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if err := validatePair(c.CertFile, c.KeyFile); err != nil {
		faults = append(faults, err)
	}
	for _, f := range []struct{ name, path string }{
		{"tls-ca", c.CAFile}, {"tls-client-ca", c.ClientCAFile},
	} {
		if f.path != "" && c.CertFile == "" {
			fault(
				"%s: %q without tls-cert, want a certificate too: without one nothing is encrypted",
				f.name, f.path)
		}
	}
	clientCA := c.CAFile != "" || c.ClientCAFile != ""
	if c.CRLFile != "" && !clientCA {
		fault("tls-crl: %q without tls-ca and tls-client-ca, want the CA that has signed it",
			c.CRLFile)
	}
	if c.RequireClientCert && !clientCA {
		fault("require-client-cert: without tls-ca and tls-client-ca, want one: the CA of the " +
			"clients' certificates")
	}
	return errors.Join(faults...)
}

func validatePair(cert, key string) error {
	switch {
	case cert != "" && key == "":
		return fmt.Errorf("tls-key: empty, want the private key of tls-cert %q", cert)
	case cert == "" && key != "":
		return fmt.Errorf("tls-cert: empty, want the certificate of tls-key %q", key)
	}
	return nil
}

// TLS reports whether c encrypts.
func (c Config) TLS() bool { return c.CertFile != "" }

// identifies reports whether clients can have a name without the issuers of tokens.
func (c Config) identifies() bool {
	return c.CAFile != "" || c.ClientCAFile != "" || c.APIKeysFile != ""
}

// Named reports whether clients must have a name.
func (c Config) Named() bool {
	return c.ClientCAFile != "" || c.RequireClientCert || c.APIKeysFile != "" || c.AccessFile != ""
}

// Loopback reports whether only this machine can reach the address, host:port.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ReadSecret reads a file, and returns an error if other users of the machine may read it. what
// names the file's content in errors. On Windows, whose files have no mode, it does not look.
func ReadSecret(what, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf(
			"%s: %s has mode %04o, want 0600, or 0640 for a group: others must not read it", what,
			path, mode)
	}
	return readFile(what, path)
}

// largestFile is the largest file that is read, in bytes.
const largestFile = 4 << 20

func readFile(what, path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w", what, &fs.PathError{
			Op: "read", Path: path, Err: errors.New("no regular file"),
		})
	case info.Size() > largestFile:
		return nil, fmt.Errorf("%s: %s has %d bytes, want at most %d", what, path, info.Size(),
			largestFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return data, nil
}

// checkWholeLines returns an error if the last line of a list has no newline: a full disk or an
// interrupted copy may have cut it, and left the beginning of a key or a name.
func checkWholeLines(what, path string, data []byte) error {
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return fmt.Errorf(
			"%s: %s has no newline at its end, want one: without it a file that is cut off looks "+
				"whole", what, path)
	}
	return nil
}
