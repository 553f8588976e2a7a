# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ErrorsTest do
  use ExternalService.Case, async: true

  # module, message, HTTP status, may a later try succeed?
  @errors [
    {RetriesExhausted, "exhausted all retries while calling the external service", 503, false},
    {CircuitBreakerOpen, "the circuit breaker for the external service is open", 503, true},
    {ExternalService.AttemptTimeout, "the attempt to call the external service took too long", 504, true},
    {ExternalService.DeadlineExceeded, "the deadline of the call to the external service has passed", 504, false},
    {ExternalService.NoEndpoint, "no endpoint of the external service can be called", 503, true},
    {ServiceNotStarted, "the external service has not been started", 500, false}
  ]

  for {module, message, status, retryable} <- @errors do
    describe inspect(module) do
      @error module
      @text message
      @status status
      @retryable retryable

      test "says what happened" do
        assert Exception.message(@error.exception([])) == @text
        assert @error.message(@error.exception([])) == @text
      end

      test "knows its HTTP status and whether a later try may succeed" do
        error = @error.exception([])
        assert @error.http_status(error) == @status
        assert @error.retryable?(error) == @retryable
      end

      test "has the fields that Errata looks for" do
        assert %{__exception__: true, __errata_error__: true, kind: :infrastructure, reason: nil, cause: nil, env: _} =
                 @error.exception([])
      end

      test "can be raised with a context and a message of one's own" do
        raised = assert_raise @error, "mine", fn -> raise @error, message: "mine", context: %{service: :x} end
        assert raised.context == %{service: :x}
      end

      test "refuses parameters it does not have, by name" do
        assert_raise ArgumentError, ~r/invalid param key\(s\).*:colour/, fn -> @error.exception(colour: :red) end
      end

      test "is a plain map for logs" do
        map = @error.to_map(@error.exception(context: %{service: :x}))
        refute is_struct(map)
        assert %{message: @text, reason: nil, context: %{service: :x}} = map
      end
    end
  end

  test "call/2 and call!/2 give the same errors, with the service in the context", %{service: s} do
    ExternalService.start(s, circuit_breaker: [tolerate: 0])
    assert {:error, %RetriesExhausted{context: context}} = fail(s)
    assert context == %{service: s, reason: :reason_unknown, attempts: 1}
    assert {:error, %CircuitBreakerOpen{context: %{service: ^s, retry_after: ms}}} = fail(s)
    assert ms in 1..60_000

    ExternalService.stop(s)
    assert {:error, %ServiceNotStarted{context: %{service: ^s}}} = fail(s)
    raised = assert_raise ServiceNotStarted, fn -> ExternalService.call!(s, fn -> 1 end) end
    assert raised.context == %{service: s}
  end
end
