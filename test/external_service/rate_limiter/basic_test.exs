# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RateLimiter.BasicTest do
  # A backend with the required callbacks alone, in the place of the local limiter.
  use ExternalService.Case, async: true

  alias ExternalService.{PlainLimiter, RateLimited, RateLimiter}

  @sleep [:rate_limit, :sleep]
  @rejected [:rate_limit, :rejected]

  defmodule Changing do
    # Like a plain limiter, but it can take other options while it is in use.
    @behaviour ExternalService.RateLimiter

    @impl true
    defdelegate init(service, options), to: PlainLimiter
    @impl true
    defdelegate check(service, config), to: PlainLimiter
    @impl true
    defdelegate peek(service, config), to: PlainLimiter
    @impl true
    defdelegate reset(service, config), to: PlainLimiter

    @impl true
    def change(_service, config, options) do
      send(config[:report_to], {:limiter, {:change, options[:limit]}})
      {:ok, config}
    end
  end

  defmodule Closed do
    # A backend that never lets a call go, and has no options of its own.
    @behaviour ExternalService.RateLimiter

    @impl true
    def init(_service, _options), do: {:ok, :closed}

    @impl true
    def check(_service, :closed), do: {:wait, 1000}

    @impl true
    def peek(_service, :closed), do: {:wait, 1000}

    @impl true
    def reset(_service, :closed), do: :ok
  end

  defp start(service, answers, options \\ []) do
    rate_limit = Keyword.merge([limit: 10, per: 1000, backend: PlainLimiter.backend(answers)], options)
    start_recording(service, rate_limit: rate_limit)
    assert [{:init, ^service, _options}] = PlainLimiter.calls()
  end

  defp call(service, options \\ []), do: ExternalService.call(service, options, attempting(:ran))

  test "is started with the limit and the options of its own", %{service: s} do
    clock = VirtualClock.new()
    ExternalService.start(s, clock: clock, rate_limit: [limit: 3, per: 50, wait: 7, backend: PlainLimiter.backend()])
    assert PlainLimiter.calls() == [{:init, s, [limit: 3, per: 50, clock: clock]}]
    ExternalService.start(s, rate_limit: [limit: 3, per: 50, backend: PlainLimiter.backend()])
    assert PlainLimiter.calls() == [{:init, s, [limit: 3, per: 50]}]
  end

  test "is not asked if the limit is :infinity", %{service: s} do
    ExternalService.start(s, rate_limit: [limit: :infinity, per: 50, backend: PlainLimiter.backend([{:wait, 1}])])
    assert call(s) == :ran
    assert PlainLimiter.calls() == []
  end

  test "is asked once by a call that it lets go", %{service: s} do
    start(s, [:ok])
    assert call(s) == :ran
    assert PlainLimiter.calls() == [:check]
    assert slept() == []
  end

  test "is asked again after each sleep that it told the call to make", %{service: s} do
    start(s, [{:wait, 30}, {:wait, 20}, :ok], wait: 100)
    Recorder.attach(s, [@sleep])
    log = capture_log(fn -> assert call(s) == :ran end)
    assert slept() == [30, 20]
    assert PlainLimiter.calls() == [:check, :check, :check]
    assert [{@sleep, %{sleep_time: 30}, _}, {@sleep, %{sleep_time: 20}, _}] = Recorder.events()

    assert [_, "; sleeping for 30 milliseconds." <> _] =
             String.split(log, "Rate limit exceeded for service #{inspect(s)}")
  end

  test "spends one budget over all sleeps, and refuses what no longer fits it", %{service: s} do
    start(s, [{:wait, 60}, {:wait, 40}, {:wait, 1}], wait: 100)
    Recorder.attach(s, [@rejected])
    assert {:error, %RateLimited{context: %{service: ^s, retry_after: 1}}} = call(s)
    assert slept() == [60, 40]
    assert [{@rejected, %{count: 1}, %{retry_after: 1}}] = Recorder.events()
    assert attempts() == 0
  end

  test "is asked no more than the budget has milliseconds, even if a sleep does not wait", %{service: s} do
    start(s, [{:wait, 10}], wait: 30)
    assert {:error, %RateLimited{context: %{retry_after: 10}}} = call(s)
    assert slept() == [10, 10, 10]
  end

  test "refuses at once what can not fit the wait", %{service: s} do
    for wait <- [false, 0, 9] do
      start(s, [{:wait, 10}], wait: wait)
      assert {:error, %RateLimited{context: %{service: ^s, retry_after: 10}}} = call(s)
      assert {PlainLimiter.calls(), slept()} == {[:check], []}
    end
  end

  test "is waited for as long as it takes with wait: :infinity", %{service: s} do
    start(s, List.duplicate({:wait, 1_000_000}, 50) ++ [:ok], wait: :infinity)
    assert call(s) == :ran
    assert slept() == List.duplicate(1_000_000, 50)
  end

  test "is asked for one, whatever the call costs", %{service: s} do
    start(s, [:ok])
    assert call(s, cost: 1000) == :ran
    assert PlainLimiter.calls() == [:check]
  end

  test "answers request, peek, rate_limited? and reset", %{service: s} do
    start(s, [:ok, {:wait, 5}], wait: false)
    assert RateLimiter.peek(s) == :ok
    refute ExternalService.rate_limited?(s)
    assert RateLimiter.request(s) == :ok
    assert RateLimiter.peek(s) == {:wait, 5}
    assert ExternalService.rate_limited?(s)
    assert {:error, %RateLimited{}} = RateLimiter.request(s)
    assert RateLimiter.reset(s) == :ok
    assert PlainLimiter.calls() == [:peek, :peek, :check, :peek, :peek, :check, :reset]
    assert call(s) == :ran
  end

  test "keeps what a saturated call has taken: it has no way to take it back", %{service: s} do
    rate_limit = [limit: 10, per: 1000, backend: PlainLimiter.backend()]
    start_recording(s, rate_limit: rate_limit, concurrency: [limit: 1])
    inner = fn -> ExternalService.call(s, fn -> :inner end) end
    assert {:error, %ExternalService.ServiceSaturated{}} = ExternalService.call(s, inner)
    assert [{:init, _, _}, :check, :check] = PlainLimiter.calls()
  end

  describe "reconfigure/2" do
    test "starts it afresh with the new limit, since it can not change", %{service: s} do
      start(s, [:ok])
      ExternalService.reconfigure(s, rate_limit: [limit: 20])
      assert PlainLimiter.calls() == [{:init, s, [limit: 20, per: 1000]}]
    end

    test "leaves it alone if nothing of it changes", %{service: s} do
      start(s, [:ok])
      ExternalService.reconfigure(s, rate_limit: [wait: 7], retry: [base: 3])
      assert PlainLimiter.calls() == []
      assert call(s) == :ran
    end

    test "asks it to change if it can", %{service: s} do
      {PlainLimiter, options} = PlainLimiter.backend()
      start_recording(s, rate_limit: [limit: 10, per: 1000, backend: {Changing, options}])
      assert [{:init, ^s, _}] = PlainLimiter.calls()
      ExternalService.reconfigure(s, rate_limit: [limit: 20])
      assert PlainLimiter.calls() == [{:change, 20}]
    end

    test "puts another backend in its place", %{service: s} do
      {PlainLimiter, options} = PlainLimiter.backend([{:wait, 7}])
      start(s, [:ok])
      ExternalService.reconfigure(s, rate_limit: [backend: {Changing, options}])
      assert [{:init, ^s, [limit: 10, per: 1000]}] = PlainLimiter.calls()
      assert RateLimiter.peek(s) == {:wait, 7}
    end

    test "puts the local limiter in its place, also without options of its own", %{service: s} do
      start_recording(s, rate_limit: [limit: 10, per: 1000, backend: Closed])
      assert ExternalService.rate_limited?(s)
      ExternalService.reconfigure(s, rate_limit: [backend: RateLimiter.Local])
      refute ExternalService.rate_limited?(s)
      assert call(s) == :ran
    end
  end
end
