package frontend

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/http"
	"time"

	"penstock/core/fault"
	"penstock/core/limit"
	"penstock/internal/edge/keys"
)

// audience says which clients may use a path while keys are in force.
type audience uint8

const (
	keyHolders audience = iota // clients with a key
	keyAdmins                  // clients with an admin key
	allClients                 // no key needed, for probes
)

// requireKey admits the clients in the audience. refuse writes an error in the path's API. Without keys
// every client is admitted.
func (f *Frontend) requireKey(who audience, refuse func(http.ResponseWriter, error), inner http.Handler) http.Handler {
	if f.deps.Keys == nil || who == allClients {
		return inner
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		identify := f.deps.Keys.IdentifyClient
		if who == keyAdmins {
			identify = f.deps.Keys.IdentifyAdmin
		}
		client, err := identify(r.Header)
		v := recordOf(r.Context())
		v.client = client
		if err != nil {
			v.err = err
			f.metrics.rejections.WithLabelValues("key").Inc()
			if client == nil {
				keys.SetChallenge(w.Header())
			}
			refuse(w, err)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

// admitRequest admits a request to a model until leave: there must be capacity, and its key must be within its
// limits.
func (c *apiCall) admitRequest() error {
	if err := c.f.checkCapacity(); err != nil {
		return err
	}
	client := c.keyClient()
	if client == nil {
		return nil
	}
	v := client.AdmitRequest()
	if v.Exceeded == limit.None {
		c.enteredKey = client
		return nil
	}
	c.f.metrics.rejections.WithLabelValues("limit").Inc()
	wait := max(retrySoon, v.Wait)
	return &fault.Error{Code: fault.Limited, RetryAfter: wait, Message: overLimitMessage(client.Key(), v.Exceeded, wait)}
}

func overLimitMessage(k *keys.Key, over limit.LimitKind, wait time.Duration) string {
	what := map[limit.LimitKind]string{
		limit.Requests: "its requests of a minute",
		limit.Tokens:   "its tokens of a minute",
		limit.Inflight: "its requests at once",
	}[over]
	return "the key " + k.Name + " has used up " + what + " (" + over.String() + "): try again in " + wait.Round(time.Second).String()
}

// keyClient is the client of the call's key; nil without keys.
func (c *apiCall) keyClient() *keys.KeyClient {
	if c.record == nil {
		return nil
	}
	return c.record.client
}

// clientShare returns a number for the name of the call's key, by which routers give keys equal shares; 0 without
// keys. Router processes get it in place of the name.
func (c *apiCall) clientShare() uint64 {
	client := c.keyClient()
	if client == nil {
		return 0
	}
	sum := sha256.Sum256([]byte("penstock client " + client.Key().Name))
	return max(binary.BigEndian.Uint64(sum[:]), 1)
}

// leaveKey ends what admitRequest started.
func (c *apiCall) leaveKey() {
	if c.enteredKey != nil {
		c.enteredKey.FinishRequest()
	}
}

// spendTokens counts tokens against the call's key.
func (c *apiCall) spendTokens(prompt, output int) {
	if client := c.keyClient(); client != nil {
		client.SpendTokens(prompt, output)
	}
}

// checkAllowed returns err, the outcome of looking a model up, unless the call's key does not allow the
// model: then the error does not reveal whether the model exists.
func (c *apiCall) checkAllowed(asked string, m *servedModel, err error) error {
	client := c.keyClient()
	if client == nil || client.Key().Models == nil {
		return err
	}
	var f *fault.Error
	switch {
	case err == nil && client.Key().AllowsModel(asked, m.Card.Name):
		return nil
	case errors.As(err, &f) && f.Code != fault.NotFound && client.Key().AllowsModel(asked):
		return err
	}
	return notForKey(asked, client)
}

// notForKey is the error of a model that a key does not allow, or that does not exist.
func notForKey(asked string, client *keys.KeyClient) error {
	return fault.New(fault.NotFound, "there is no model '%s' for the key %s: GET /v1/models lists those that there are", shorten(asked), client.Key().Name)
}
