// Package secure says who calls and what the caller may do: TLS for all servers of an agent, the
// names of callers, their rights, and their limits.
//
// In come connections, and calls with their credentials. Out go names, refusals, and the settings
// of TLS for servers and clients. The package decides and refuses; the agent says what it guards.
//
// A caller has a name from its certificate, or from an API key:
//
//   - A certificate must be one of the CA that the agent was given. Its name is the subject's
//     common name, or else the first DNS name, or else the first URI. An agent's certificate is one
//     of the fleet's own CA that has the DNS name [AgentName]; it may do everything.
//   - An API key comes with each call, as `authorization: Bearer KEY` in gRPC's metadata or in the
//     HTTP header. It takes precedence over a certificate.
//
// The access file says what a name may do ([Access]).
//
// Certificates, keys and access are read from files, which are looked at every second. If a file
// cannot be read or makes no sense, what was read before stays in force. A certificate is checked
// when a connection is made, keys and access with each call.
package secure
