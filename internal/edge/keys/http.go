package keys

import (
	"net/http"
	"strings"

	"penstock/core/fault"
)

// Identify returns whose key a request shows: as OpenAI's clients do, or as
// Anthropic's. One that is good is enough. The error is Unauthorized.
func (r *Ring) Identify(h http.Header) (*Client, error) {
	scheme, bearer, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		bearer = ""
	}
	other := h.Get("X-Api-Key")
	for _, secret := range [...]string{strings.TrimSpace(bearer), other} {
		if secret == "" {
			continue
		}
		if c := r.Find(secret); c != nil {
			return c, nil
		}
	}
	if bearer == "" && other == "" {
		return nil, fault.New(fault.Unauthorized, "this server asks for an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
	}
	return nil, fault.New(fault.Unauthorized, "the API key is not one of this server's: check it, or ask the operator for one")
}

// IdentifyAdmin is Identify for what is for administrators. A key that is good and
// not for this is Forbidden; its client is returned beside the error.
func (r *Ring) IdentifyAdmin(h http.Header) (*Client, error) {
	c, err := r.Identify(h)
	if err == nil && !c.Key().Admin {
		err = fault.New(fault.Forbidden, "the key %s may not do this: it takes one with admin: true in the key file", c.Key().Name)
	}
	return c, err
}

// Challenge sets the header that an answer to a request without a good key has.
func Challenge(h http.Header) { h.Set("WWW-Authenticate", `Bearer realm="penstock"`) }
