# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.FallbackTest do
  use ExternalService.Case, async: true

  alias ExternalService.{AttemptTimeout, Deadline, DeadlineExceeded, RateLimited, ServiceSaturated}

  defp module_of(error), do: error.__struct__

  # A call of each kind that fails, as {options of the service, how to call it with a fallback, its error}.
  defp failing do
    once = [max_attempts: 1]
    hang = fn -> Process.sleep(:infinity) end

    [
      {[], fn s, own -> ExternalService.call(s, once ++ own, fn -> :retry end) end, RetriesExhausted},
      {[circuit_breaker: [tolerate: 0]],
       fn s, own ->
         fail(s)
         ExternalService.call(s, own, fn -> :retry end)
       end, CircuitBreakerOpen},
      {[rate_limit: [limit: 0, per: 1]], fn s, own -> ExternalService.call(s, own, fn -> :retry end) end, RateLimited},
      {[concurrency: [limit: 1]],
       fn s, own -> ExternalService.call(s, fn -> ExternalService.call(s, own, fn -> :retry end) end) end,
       ServiceSaturated},
      {[timeout: 1], fn s, own -> ExternalService.call(s, once ++ own, hang) end, AttemptTimeout},
      {[deadline: 1], fn s, own -> ExternalService.call(s, once ++ own, hang) end, DeadlineExceeded},
      {[], fn s, own -> Deadline.with_deadline(0, fn -> ExternalService.call(s, own, fn -> :retry end) end) end,
       DeadlineExceeded},
      {[retry: [budget: [min_per_second: 0, ratio: 0]]],
       fn s, own ->
         for _ <- 1..20, do: ExternalService.call(s, [base: 0, max_attempts: 2], fn -> :retry end)
         ExternalService.call(s, own, fn -> :retry end)
       end, RetriesExhausted},
      {[retry: [retry_exceptions: [KeyError], base: 0]],
       fn s, own -> ExternalService.call(s, own, fn -> raise KeyError, key: 1, term: 2 end) end, KeyError},
      {:not_started, fn s, own -> ExternalService.call(s, own, fn -> :retry end) end, ServiceNotStarted}
    ]
  end

  test "runs for refusals, timeouts, deadlines, retries in vain and the exceptions raised after them alike", %{
    service: s
  } do
    for {options, call, expected} <- failing() do
      if options != :not_started,
        do: ExternalService.start(s, [circuit_breaker: [tolerate: 1_000]] |> Keyword.merge(options))

      assert call.(s, fallback: &{:instead, module_of(&1)}) == {:instead, expected}
      ExternalService.stop(s)
    end
  end

  test "does not run for a result, nor for an exception that is not retried", %{service: s} do
    ExternalService.start(s, fallback: fn _error -> flunk("it ran") end)
    for result <- [:fine, {:error, :as_it_is}, nil], do: assert(ExternalService.call(s, fn -> result end) == result)
    assert_raise KeyError, fn -> ExternalService.call(s, fn -> raise KeyError, key: 1, term: 2 end) end
    assert catch_throw(ExternalService.call(s, fn -> throw(:ball) end)) == :ball
  end

  describe "a fallback" do
    setup %{service: s},
      do: ExternalService.start(s, retry: [max_attempts: 2, base: 0], fallback: {:value, :of_service})

    test "of the service is what a call returns, and that of the call goes before it", %{service: s} do
      assert ExternalService.call(s, fn -> :retry end) == :of_service
      assert ExternalService.call(s, [fallback: {:value, :of_call}], fn -> :retry end) == :of_call
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [fallback: nil], fn -> :retry end)
    end

    test "may be any value, falsy ones included", %{service: s} do
      for value <- [nil, false, 0, "", [], {:error, :mine}],
          do: assert(ExternalService.call(s, [fallback: {:value, value}], fn -> :retry end) == value)
    end

    test "of two arguments gets what is known of the call", %{service: s} do
      tell = fn error, context -> {module_of(error), context} end

      assert ExternalService.call(s, [fallback: tell], fn -> :retry end) ==
               {RetriesExhausted, %{service: s, attempts: 2, arguments: []}}

      ExternalService.open(s)
      assert {CircuitBreakerOpen, %{attempts: 0}} = ExternalService.call(s, [fallback: tell], fn -> :retry end)
    end

    test "is told how many attempts went before a refusal", %{service: s} do
      open = fn -> ExternalService.open(s) && :retry end
      tell = fn error, %{attempts: attempts} -> {module_of(error), attempts} end
      assert ExternalService.call(s, [fallback: tell], open) == {CircuitBreakerOpen, 1}
    end

    test "gives call! its result, too", %{service: s} do
      assert ExternalService.call!(s, fn -> :retry end) == :of_service
    end

    test "that fails is the call's failure", %{service: s} do
      assert_raise KeyError, fn ->
        ExternalService.call(s, [fallback: fn _ -> raise KeyError, key: 1, term: 2 end], fn -> :retry end)
      end

      assert catch_throw(ExternalService.call(s, [fallback: fn _ -> throw(:ball) end], fn -> :retry end)) == :ball
      assert ExternalService.call(s, [fallback: fn _ -> {:error, :too} end], fn -> :retry end) == {:error, :too}
    end

    test "runs in the calling process, outside of the call's limits", %{service: s} do
      ExternalService.start(s, timeout: 1, concurrency: [limit: 1], retry: [max_attempts: 1])
      slow = fn _error -> {self(), ExternalService.Concurrency.in_flight(s), Deadline.remaining()} end
      assert ExternalService.call(s, [fallback: slow], fn -> Process.sleep(:infinity) end) == {self(), 0, :infinity}
    end

    test "is told by events, and marks the result", %{service: s} do
      Recorder.attach(s, [[:fallback], [:call, :stop]])
      ExternalService.call(s, fn -> :retry end)
      assert [{[:fallback], %{count: 1}, %{reason: %RetriesExhausted{}}}, {[:call, :stop], _, stop}] = Recorder.events()
      assert %{result: :of_service, fallback: true} = stop
      ExternalService.call(s, fn -> :fine end)
      assert [{[:call, :stop], _, stop}] = Recorder.events()
      refute Map.has_key?(stop, :fallback)
    end

    test "stays the call's when the service changes while it waits", %{service: s} do
      restart = fn -> ExternalService.start(s, retry: [base: 0, max_attempts: 2]) && :retry end
      assert ExternalService.call(s, [fallback: {:value, :of_call}], restart) == :of_call
    end

    test "can be changed while the service runs", %{service: s} do
      ExternalService.reconfigure(s, fallback: {:value, :other})
      assert ExternalService.call(s, fn -> :retry end) == :other
      ExternalService.reconfigure(s, fallback: nil)
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end)
    end
  end

  describe "a list of fallbacks" do
    setup %{service: s}, do: ExternalService.start(s, retry: [max_attempts: 1])

    defp call(service, fallback), do: ExternalService.call(service, [fallback: fallback], fn -> {:retry, :down} end)

    test "is tried in order: by module, by function, by :any", %{service: s} do
      down? = &(&1.context[:reason] == :down)
      assert call(s, [{RetriesExhausted, {:value, 1}}, {:any, {:value, 2}}]) == 1
      assert call(s, [{CircuitBreakerOpen, {:value, 1}}, {:any, {:value, 2}}]) == 2
      assert call(s, [{CircuitBreakerOpen, {:value, 1}}, {down?, fn error -> error.context.attempts end}]) == 1
      assert call(s, [{:any, {:value, :first}}, {RetriesExhausted, {:value, :second}}]) == :first
    end

    test "in which none matches leaves the error", %{service: s} do
      assert {:error, %RetriesExhausted{}} =
               call(s, [{CircuitBreakerOpen, {:value, 1}}, {fn _ -> nil end, {:value, 2}}])

      ExternalService.reconfigure(s, retry: [retry_exceptions: [KeyError]])
      raising = fn -> raise KeyError, key: 1, term: 2 end
      own = [fallback: [{ArgumentError, {:value, 1}}]]
      assert_raise KeyError, fn -> ExternalService.call(s, own, raising) end
      assert ExternalService.call(s, [fallback: [{KeyError, {:value, 1}}]], raising) == 1
    end

    test "replaces the list that was there, and is not merged with it", %{service: s} do
      every? = fn _error -> true end

      for fallback <- [[{:any, {:value, 1}}], [{RetriesExhausted, {:value, 2}}], [{every?, {:value, 3}}]] do
        ExternalService.reconfigure(s, fallback: fallback)
        [{_matcher, {:value, value}}] = fallback
        assert ExternalService.call(s, fn -> :retry end) == value
      end

      ExternalService.reconfigure(s, fallback: [{CircuitBreakerOpen, {:value, 4}}])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end)
    end

    test "may hold lists", %{service: s} do
      assert call(s, [{:any, [{KeyError, {:value, 1}}, {:any, {:value, 2}}]}]) == 2
    end

    test "takes a matcher that fails for one that does not match, and says so in the log", %{service: s} do
      log = capture_log(fn -> assert call(s, [{fn _ -> raise "no" end, {:value, 1}}, {:any, {:value, 2}}]) == 2 end)
      assert log =~ "The :fallback predicate"
    end
  end

  defmodule Named do
    use ExternalService, retry: [max_attempts: 1], fallback: :instead

    def instead(error), do: {:instead, error.context.reason}
    def with_context(error, context), do: {error.context.reason, context.attempts}
  end

  describe "the name of a function" do
    setup do
      start_supervised!(Named)
      on_exit(fn -> ExternalService.stop(Named) end)
    end

    test "is that of the module that uses the library" do
      assert Named.call(fn -> {:retry, :down} end) == {:instead, :down}
      assert Named.call([fallback: :with_context], fn -> {:retry, :down} end) == {:down, 1}
      assert Named.call([fallback: [{RetriesExhausted, :with_context}]], fn -> {:retry, :down} end) == {:down, 1}
    end

    test "that is not there is refused before the function runs" do
      for fallback <- [:missing, [{:any, :missing}]] do
        error = raised(fn -> Named.call([fallback: fallback], attempting(:done)) end)
        assert %ArgumentError{} = error
        assert Exception.message(error) =~ ":missing"
      end

      assert attempts() == 0
    end

    test "is found where the service is not started" do
      ExternalService.stop(Named)
      fallback = [{ServiceNotStarted, {:value, :not_started}}, {:any, :instead}]
      assert Named.call([fallback: fallback], attempting(:done)) == :not_started
      assert attempts() == 0
    end

    test "that is not there is refused by start_link" do
      stop_supervised!(Named)
      Process.flag(:trap_exit, true)
      assert {:error, {%ArgumentError{}, _}} = Named.start_link(fallback: :missing)
    end

    test "stays valid when the service is reconfigured" do
      ExternalService.reconfigure(Named, fallback: :with_context)
      assert Named.call(fn -> {:retry, :down} end) == {:down, 1}
    end
  end
end
