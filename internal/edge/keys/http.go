package keys

import (
	"net/http"
	"strings"

	"penstock/core/fault"
)

// IdentifyClient returns the client whose key the request has, in the header of OpenAI's or of Anthropic's
// clients. One valid key is enough. The error is Unauthorized.
func (r *Keyring) IdentifyClient(h http.Header) (*KeyClient, error) {
	scheme, bearer, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		bearer = ""
	}
	other := h.Get("X-Api-Key")
	for _, secret := range [...]string{strings.TrimSpace(bearer), other} {
		if secret == "" {
			continue
		}
		if c := r.FindClient(secret); c != nil {
			return c, nil
		}
	}
	if bearer == "" && other == "" {
		return nil, fault.New(fault.Unauthorized, "this server asks for an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
	}
	return nil, fault.New(fault.Unauthorized, "the API key is not one of this server's: check it, or ask the operator for one")
}

// IdentifyAdmin is IdentifyClient for administrative requests. A valid key without admin rights is Forbidden;
// its client is returned with the error.
func (r *Keyring) IdentifyAdmin(h http.Header) (*KeyClient, error) {
	c, err := r.IdentifyClient(h)
	if err == nil && !c.Key().Admin {
		err = fault.New(fault.Forbidden, "the key %s may not do this: it takes one with admin: true in the key file", c.Key().Name)
	}
	return c, err
}

// SetChallenge sets the header of a response to a request without a valid key.
func SetChallenge(h http.Header) { h.Set("WWW-Authenticate", `Bearer realm="penstock"`) }
