// An OpenID Connect provider on a loopback port, by oidc-provider:
//
//	node provider.mjs FOLDER PORT KEYS
//
// FOLDER is where npm has installed the package, and KEYS the private keys as a JWKS, the first of
// which signs. The client "batch" with the secret "secret" gets access tokens for any resource; they
// are JWTs, of the groups that its scope names.
const { Provider } = await import(process.argv[2] + "/node_modules/oidc-provider/lib/index.js");
const port = process.argv[3];
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  jwks: JSON.parse(process.argv[4]),
  clients: [{
    client_id: "batch", client_secret: "secret", redirect_uris: [], response_types: [],
    grant_types: ["client_credentials"],
    id_token_signed_response_alg: JSON.parse(process.argv[4]).keys[0].alg,
  }],
  scopes: ["ads-team"],
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, resource) => ({
        scope: "ads-team", audience: resource, accessTokenTTL: 600, accessTokenFormat: "jwt",
        jwt: { sign: { alg: JSON.parse(process.argv[4]).keys[0].alg } },
      }),
    },
  },
  extraTokenClaims: (_, token) => ({ sub: token.clientId, groups: token.scope ? [token.scope] : [] }),
});
provider.listen(port, "127.0.0.1", () => console.log("listening"));
