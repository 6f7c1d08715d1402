package planner

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"penstock/core/plan"
)

// WebhookConfig configures a WebhookConnector.
type WebhookConfig struct {
	// URL gets the decisions.
	URL string
	// Secret signs them, "" signs none.
	Secret string
	// Transport carries them, the default one if nil.
	Transport http.RoundTripper
}

// signatureHeader has the signature of a decision: "sha256=" and the HMAC-SHA-256 of the body in hexadecimal digits.
const signatureHeader = "X-Penstock-Signature"

// webhookTimeout bounds a call.
const webhookTimeout = 10 * time.Second

// WebhookConnector posts the decision to a URL every interval. A status from 200 to 299 accepts it, and the
// body of the answer may be an acknowledgement.
type WebhookConnector struct {
	cfg    WebhookConfig
	client *http.Client
	ack    *Ack // the answer to the last decision, nil if there is none
	posted uint64
}

// NewWebhookConnector returns a connector.
func NewWebhookConnector(cfg WebhookConfig) *WebhookConnector {
	// A redirect would take the decision to a server which no setting names.
	return &WebhookConnector{cfg: cfg, client: &http.Client{
		Transport: cfg.Transport, Timeout: webhookTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ApplyDecision implements Connector.
func (c *WebhookConnector) ApplyDecision(ctx context.Context, d *FleetDecision, _ []FleetWorker) error {
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	if c.cfg.Secret != "" {
		mac := hmac.New(sha256.New, []byte(c.cfg.Secret))
		mac.Write(body)
		req.Header.Set(signatureHeader, "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	c.ack, c.posted = nil, d.ID // an earlier answer does not tell what exists now
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("no answer: %w", errors.Unwrap(err)) // without the URL, which may have a secret
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAck+1))
	if err != nil {
		return fmt.Errorf("its answer cannot be read: %w", err)
	}
	if len(bytes.TrimSpace(answer)) == 0 {
		return nil
	}
	if c.ack, err = parseAck(answer); err != nil {
		c.ack = nil
		return fmt.Errorf("its answer is no acknowledgement: %w", err)
	}
	return nil
}

// DescribeFleet implements Connector.
func (c *WebhookConnector) DescribeFleet(_ context.Context, roles []plan.WorkerRole) (fleet []plan.RoleFleet, problems []string) {
	if c.ack == nil {
		return nil, nil
	}
	if c.ack.Error != "" {
		problems = append(problems, fmt.Sprintf("connector webhook: it reports: %.200q", c.ack.Error))
	}
	return c.ack.fleetOf(roles, c.posted), problems
}

// Close implements Connector.
func (c *WebhookConnector) Close() error {
	c.client.CloseIdleConnections()
	return nil
}
