// Package secure protects the servers of an agent: TLS, and the names, rights and limits of
// callers.
//
// Input: connections, and calls with their credentials. Output: names, refusals, and the TLS
// settings of servers and clients. The package decides and refuses; the agent chooses which servers
// and calls to protect.
//
// A caller has a name from its certificate, or from an API key:
//
//   - A certificate must be from the CA that the agent was given. The caller's name is the
//     subject's common name, or else the first DNS name, or else the first URI. An agent's
//     certificate is from the fleet's own CA and has the DNS name [AgentName]; it may do
//     everything.
//   - An API key comes with each call, as `authorization: Bearer KEY` in gRPC's metadata or in the
//     HTTP header. It takes precedence over a certificate.
//
// The access file says what each name may do ([Access]).
//
// Certificates, keys and access are read from files, which are checked for changes every second. If
// a file cannot be read or parsed, its former content stays in force. A certificate is checked when
// a connection is made, keys and access with each call.
package secure
