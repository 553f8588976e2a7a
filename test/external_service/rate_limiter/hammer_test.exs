# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RateLimiter.HammerTest do
  use ExternalService.Case, async: true
  doctest ExternalService.RateLimiter.Hammer

  alias ExternalService.{HammerStandIn, RateLimited, RateLimiter}
  alias ExternalService.RateLimiter.Hammer

  defmodule Bucket do
    # An algorithm that counts nothing anybody could read, and denies without a time.
    def hit(_key, _scale, limit), do: if(limit > 1, do: {:allow, 1}, else: {:deny, 0})
  end

  defmodule Windowless do
    # Full, and does not tell until when.
    def hit(_key, _scale, _limit), do: {:deny, 10}
    def get(_key, _scale), do: 1_000
  end

  defmodule Over do
    # Full, by a window that is over.
    def hit(_key, _scale, _limit), do: {:deny, 10}
    def get(_key, _scale), do: 1_000
    def expires_at(_key, _scale), do: 1
  end

  defp start(service, rate_limit, options \\ []) do
    backend = {Hammer, Keyword.put_new(options, :module, HammerStandIn)}
    rate_limit = Keyword.put(rate_limit, :backend, backend)
    ExternalService.start(service, rate_limit: rate_limit, sleep_function: &sleep/1)
  end

  defp sleep(ms) do
    send(self(), {:slept, ms})
    HammerStandIn.pass(ms)
  end

  defp goes?(service), do: ExternalService.call(service, fn -> :gone end) == :gone

  defp refusal(options) do
    rate_limit = [limit: 1, per: 1_000, backend: {Hammer, options}]
    error = raised(fn -> ExternalService.start(:never_started, rate_limit: rate_limit) end)
    assert %ArgumentError{} = error
    Exception.message(error)
  end

  test "lets as many calls go as the limit says, and refuses the next", %{service: s} do
    start(s, limit: 2, per: 1_000, wait: false)
    assert {goes?(s), goes?(s)} == {true, true}
    assert {:error, %RateLimited{context: context}} = ExternalService.call(s, fn -> flunk("it ran") end)
    assert context == %{service: s, retry_after: 1_000}
  end

  test "lets a call wait until its window is over, and asks again", %{service: s} do
    start(s, limit: 1, per: 1_000, wait: 1_000)
    HammerStandIn.pass(400)
    assert {goes?(s), goes?(s)} == {true, true}
    assert slept() == [600]
  end

  test "refuses a call whose window would end after its wait", %{service: s} do
    start(s, limit: 1, per: 1_000, wait: 999)
    assert {goes?(s), goes?(s)} == {true, false}
    assert slept() == []
  end

  test "peeks without taking anything", %{service: s} do
    start(s, limit: 1, per: 60_000, wait: false)
    for _ <- 1..3, do: refute(ExternalService.rate_limited?(s))
    assert goes?(s)
    assert {:wait, ms} = RateLimiter.peek(s)
    assert ms in 1..60_000
    assert ExternalService.rate_limited?(s)
  end

  test "peeks at a call's share of the time where the end of the window is unknown", %{service: s} do
    start(s, [limit: 3, per: 1_000], module: Windowless)
    assert RateLimiter.peek(s) == {:wait, 334}
  end

  test "never waits for less than a millisecond", %{service: s} do
    start(s, [limit: 1, per: 1_000, wait: false], module: Bucket)
    assert {:error, %RateLimited{context: %{retry_after: 1}}} = RateLimiter.request(s)
    start(s, [limit: 1, per: 1_000], module: Over)
    assert RateLimiter.peek(s) == {:wait, 1}
  end

  test "with a limit of 0 refuses every call", %{service: s} do
    start(s, limit: 0, per: 1_000, wait: false)
    refute goes?(s)
    assert {:wait, _ms} = RateLimiter.peek(s)
  end

  test "gives the whole limit back", %{service: s} do
    start(s, limit: 1, per: 60_000, wait: false)
    assert {goes?(s), goes?(s)} == {true, false}
    assert RateLimiter.reset(s) == :ok
    assert goes?(s)
  end

  test "copes with a module that has nothing but hit/3", %{service: s} do
    start(s, [limit: 2, per: 1_000, wait: false], module: Bucket)
    assert goes?(s)
    assert RateLimiter.peek(s) == :ok
    assert RateLimiter.reset(s) == :ok
  end

  test "counts under the service's own key, or under the one that is given", %{service: s} do
    other = {s, :other}
    on_exit(fn -> ExternalService.stop(other) end)
    for name <- [s, other], do: start(name, limit: 1, per: 1_000, wait: false)
    assert {goes?(s), goes?(other)} == {true, true}
    assert HammerStandIn.get(Hammer.default_key(s), 1_000) == 1

    for name <- [s, other], do: start(name, [limit: 1, per: 1_000, wait: false], key: "shared")
    assert {goes?(s), goes?(other)} == {true, false}
  end

  test "starts nothing without a module, or with one that is no such limiter" do
    assert refusal([]) =~ "requires a :module option naming the Hammer rate limiter module"

    for wrong <- [nil, true, "MyApp.RateLimit", 1, Enum, :no_such_module] do
      assert refusal(module: wrong) =~ "expects :module to be a Hammer rate limiter module, got: #{inspect(wrong)}"
    end

    refute :never_started in ExternalService.services()
  end
end
