package vllm

import (
	"context"
	"fmt"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// connectorRemedy says how a server with a connector is started.
const connectorRemedy = `--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'`

// checkConnector checks that the server has the connector of the settings, by a prefill leg. A server
// says nothing of it elsewhere, and one without a connector would compute each prompt twice without a word.
func (p *serverProbe) checkConnector(ctx context.Context, card *engine.Card, d remote.Dialect) error {
	connector, host := p.Config.Spec.KVConnector, p.Config.Spec.URL.Host
	switch {
	case connector == "":
		return nil
	case connector != engine.NIXLConnector:
		return fmt.Errorf("the engine at %s has kv-connector=%.40q, which is none of vLLM's that are spoken: set it to nixl, or leave it out", host, string(connector))
	case d == nil:
		return fmt.Errorf("the engine at %s has kv-connector=nixl and takes no tokens, so that its requests are passed on as they are and cannot be divided: leave out kv-connector, or see the warning %s", host, engine.WarnTextOnly)
	}
	card.KVConnector = connector
	seen, err := remote.ProbePrefillLeg(ctx, p.Client, card, d, p.probePrompt(card))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case fault.CodeOf(err) == fault.Unavailable || fault.CodeOf(err) == fault.Overloaded:
		return err
	case err != nil:
		return fmt.Errorf("the engine at %s has kv-connector=nixl and refuses a prefill leg: %w", host, err)
	case !seen.HandsOver:
		return fmt.Errorf("the engine at %s has kv-connector=nixl and gives no kv_transfer_params: start vLLM with %s, or leave out kv-connector", host, connectorRemedy)
	}
	return nil
}
