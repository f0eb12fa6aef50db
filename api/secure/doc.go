// Package secure is who is there and what they may do: TLS for all of an
// agent's servers, the names of those who call, and what each of them may ask
// for. It decides and refuses; what it is to guard is for the agent and for
// those who call agents to say.
//
// A caller has a name from its certificate, or from an API key:
//
//   - A certificate is one of the CA's that the agent was given. Its name is
//     the subject's common name; without one the first DNS name, without that
//     the first URI. The certificate of an agent is one of the cluster's own CA
//     that has the DNS name [AgentName]; it may do everything.
//   - An API key travels with each call, as `authorization: Bearer KEY` in
//     gRPC's metadata or HTTP's header. It counts before a certificate.
//
// What a name may do is in the access file ([Access]).
//
// Certificates, keys and access are read from files, which are looked at again
// every second. A file that cannot be read, or makes no sense, leaves what was
// read before in force. A certificate is looked at when a connection is made,
// keys and access with each call.
package secure
