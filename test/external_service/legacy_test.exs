# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.LegacyTest do
  use ExternalService.Case, async: true

  alias ExternalService.Legacy

  # Options of version 1, and what the refusal shows for them.
  @options [
    {[fuse_strategy: {:standard, 5, 10_000}, fuse_refresh: 5_000],
     "circuit_breaker: [tolerate: 5, within: 10000, reset: 5000]"},
    {[fuse_refresh: 5_000], "circuit_breaker: [reset: 5000]"},
    {[fuse_strategy: {:fault_injection, 0.25, 5, 10_000}],
     "circuit_breaker: [tolerate: 5, within: 10000, fault_injection: 0.25]"},
    {[fuse: [strategy: {:standard, 5, 10_000}, refresh: 5_000]],
     "circuit_breaker: [tolerate: 5, within: 10000, reset: 5000]"},
    {[rate_limit: {100, 1_000}], "rate_limit: [limit: 100, per: 1000, wait: :infinity]"},
    {[fuse_refresh: 1, rate_limit: {3, 4}],
     "circuit_breaker: [reset: 1], rate_limit: [limit: 3, per: 4, wait: :infinity]"}
  ]

  @retry [
    {[backoff: {:exponential, 50}], "backoff: :exponential, base: 50"},
    {[backoff: {:linear, 100, 2}], "backoff: :linear, base: 100, increment: 2"},
    {[randomize: true], "jitter: true"},
    {[rescue_only: [KeyError, ArgumentError]], "retry_exceptions: [KeyError, ArgumentError]"},
    {[randomize: false, backoff: {:exponential, 1}], "jitter: false, backoff: :exponential, base: 1"}
  ]

  defp refusal(fun) do
    assert %ValidationError{} = error = raised(fun)
    Exception.message(error)
  end

  for {old, today} <- @options do
    test "start/2 refuses #{inspect(old)} and shows today's spelling, which it takes", %{service: s} do
      message = refusal(fn -> ExternalService.start(s, unquote(Macro.escape(old))) end)
      assert message =~ "`#{unquote(today)}`"
      assert message =~ inspect(hd(Keyword.keys(unquote(Macro.escape(old)))))
      refute s in ExternalService.services()
      {options, _binding} = Code.eval_string("[#{unquote(today)}]")
      assert ExternalService.start(s, options) == :ok
    end
  end

  for {old, today} <- @retry do
    test "retry options #{inspect(old)} are refused wherever they are given, with today's spelling", %{service: s} do
      old = unquote(Macro.escape(old))
      ExternalService.start(s)
      assert refusal(fn -> ExternalService.start(s, retry: old) end) =~ "`#{unquote(today)}`"
      assert refusal(fn -> ExternalService.call(s, old, fn -> flunk("it ran") end) end) =~ "`#{unquote(today)}`"
      assert refusal(fn -> RetryOptions.new(old) end) =~ "`#{unquote(today)}`"
      {options, _binding} = Code.eval_string("[#{unquote(today)}]")
      assert %RetryOptions{} = RetryOptions.new(options)
    end
  end

  test "a linear backoff keeps its delays" do
    {options, _binding} = Code.eval_string("[#{Legacy.spelled(backoff: {:linear, 100, 50})}]")
    assert RetryOptions.window([max_attempts: 4] ++ options) == 100 + 150 + 200
  end

  test "a struct with an old backoff is refused with today's spelling", %{service: s} do
    old = %RetryOptions{backoff: {:exponential, 50}}
    assert refusal(fn -> ExternalService.start(s, retry: old) end) =~ "`backoff: :exponential, base: 50`"
    ExternalService.start(s)
    assert refusal(fn -> ExternalService.call(s, old, fn -> 1 end) end) =~ "`backoff: :exponential, base: 50`"
  end

  test "the name of a fuse is the name of the service" do
    assert Legacy.spelled(fuse: [name: :mail]) == "name: :mail"
    assert Legacy.spelled(fuse: [name: :mail, refresh: 5]) == "name: :mail, circuit_breaker: [reset: 5]"
  end

  test "values that no version took, or that can not be written down, are stood in for" do
    assert Legacy.spelled(fuse_strategy: :weird) == "circuit_breaker: [tolerate: failures, within: ms]"
    assert Legacy.spelled(fuse_strategy: self()) == "circuit_breaker: [tolerate: failures, within: ms]"
    assert Legacy.spelled(fuse: []) == "circuit_breaker: [tolerate: failures, within: ms, reset: ms]"
    assert Legacy.spelled(fuse: :mail) == "circuit_breaker: [tolerate: failures, within: ms, reset: ms]"
    assert Legacy.spelled(rescue_only: fn _ -> true end) == "retry_exceptions: value"
  end

  test "options of today have no other spelling", %{service: s} do
    options = [circuit_breaker: [tolerate: 1], rate_limit: [limit: 1, per: 1], retry: [backoff: :linear, jitter: true]]
    assert Legacy.spelled(options) == nil
    assert Legacy.spelled(options[:retry]) == nil
    refute refusal(fn -> ExternalService.start(s, [colour: 1] ++ options) end) =~ "version 1"
    refute refusal(fn -> ExternalService.start(s, retry: [backoff: :cubic]) end) =~ "such as"
  end

  test "an unknown option of today does not bring up an old one beside it", %{service: s} do
    message = refusal(fn -> ExternalService.start(s, colour: 1, rate_limit: {1, 2}) end)
    assert message =~ "unknown options [:colour]"
    refute message =~ "version 1"
  end
end
