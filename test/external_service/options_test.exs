# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.OptionsTest do
  use ExternalService.Case, async: true

  alias ExternalService.{LimiterStandIn, Options}

  @huge Integer.pow(10, 30)
  @long Integer.pow(10, 11)

  # group => option => {what it accepts of the hostile values, boundaries and other values it accepts}
  @rows %{
    start: [
      circuit_breaker: {[[]], [[tolerate: 1]]},
      retry: {[[]], [[base: 1], quote(do: %RetryOptions{max_attempts: 1})]},
      rate_limit: {[], [[limit: 1, per: 1]]},
      concurrency: {[], [[limit: 1]]},
      timeout: {[:infinity], [1, @long]},
      deadline: {[:infinity], [1, @long]},
      fallback: {
        [nil],
        [
          quote(do: &Function.identity/1),
          quote(do: &max/2),
          {:value, 1},
          [{KeyError, {:value, 1}}, {:any, [{:any, {:value, 2}}]}]
        ]
      },
      endpoints: {
        [[1], ~c"chars", [nil], [true], [:exponential]],
        [["a", {"b", weight: 2}], [{:host, 80}], quote(do: fn -> [:a] end)]
      },
      balancer: {
        [],
        [
          :round_robin,
          :random,
          :least_busy,
          quote(do: Function.identity({:hash, &to_string/1})),
          quote(do: Function.identity({:hash, &self/0}))
        ]
      },
      max_ejected: {[0, 0.0], [0.5, 1.0, 1]},
      max_instances: {[], [1, 10_000_000]},
      idle_timeout: {[:infinity], [1, @long]},
      sleep_function: {[], [quote(do: &Function.identity/1)]},
      clock: {[], [quote(do: VirtualClock.new())]},
      telemetry: {[], [:all, :changes]}
    ],
    circuit_breaker: [
      tolerate: {[:infinity, 0], [1, 1_000_000]},
      within: {[], [:auto, 1, @long]},
      failure_rate: {[], [1.0, 0.5, 1, 1.0e-6]},
      slow_call: {[], [1, @long]},
      slow_rate: {[], [1.0, 0.5]},
      min_calls: {[], [1, 1_000_000]},
      window: {[], [{:time, 1}, {:time, @long}, {:calls, 1}, {:calls, 1_000_000}]},
      consecutive: {[], [1, 1_000_000]},
      reset: {[0], [1, @long]},
      reset_backoff: {[], [[max: 60_000]]},
      reset_jitter: {[0, 0.0], [0.1, 1.0]},
      half_open: {[true, false, []], [[probes: 3]]},
      ramp_up: {[], [1, @long]},
      melt: {[], [:per_attempt, :per_call]},
      fault_injection: {[], [1.0, 0.5, 1, 1.0e-6]},
      backend: {[], [StandIn, {StandIn, []}, {StandIn, [colour: :red]}]}
    ],
    retry: [
      backoff: {[[1], ~c"chars"], [:exponential, :linear, :constant, [0], [5, 5, @long], quote(do: &(&1 * 10))]},
      base: {[0], [1, @long]},
      multiplier: {[1.5], [1, 2, 1.0, 1_000]},
      increment: {[0], [1, @long]},
      factor: {[], [1, 1_000_000]},
      cap: {[], [1, @long]},
      expiry: {[:infinity], [1, @long]},
      max_attempts: {[:infinity], [1, 1_000_000]},
      jitter: {[true, false, 0, 0.0], [0.1, 1.0, 1, :full, :decorrelated]},
      retry_after_max: {[0], [1, @long]},
      budget: {[true, false, []], [[ratio: 0.1]]},
      retry_on: {[], [quote(do: &Function.identity/1)]},
      retry_exceptions: {[[], [:exponential]], [[KeyError], quote(do: &Function.identity/1)]}
    ],
    budget: [
      ratio: {[0, 0.0], [0.1, 1.0, 1]},
      min_per_second: {[0], [1, 1_000_000]}
    ],
    half_open: [
      probes: {[], [1, 1_000]},
      successes: {[], [1, 1_000_000]},
      lease: {[], [1, @long]}
    ],
    reset_backoff: [
      factor: {[1.5], [1, 2, 1.0, 1_000]},
      max: {[], [60_000, @long]}
    ],
    rate_limit: [
      limit: {[0, :infinity], [1, 1_000_000]},
      per: {[], [1, @long]},
      wait: {[false, :infinity, 0, @huge], [1, @long]},
      backend: {[], [LimiterStandIn, {LimiterStandIn, []}, {LimiterStandIn, [colour: :red]}]}
    ],
    endpoint: [
      weight: {[], [1, 1_000]},
      circuit_breaker: {[[]], [[tolerate: 1]]},
      concurrency: {[], [[limit: 1]]}
    ],
    concurrency: [
      limit: {[], [1, 1_000_000]},
      per: {[], [:service, :endpoint]},
      wait: {[false, 0], [1, @long]},
      queue: {[0, :infinity], [1, 0xFFFFFF]},
      reclaim_after: {[], [1, @long]}
    ]
  }

  # Values that the option refuses because of another one, or that no start should wait for.
  @too_high [
    circuit_breaker: {:tolerate, 1_000_001},
    circuit_breaker: {:fault_injection, 1.0000001},
    retry: {:jitter, 1.0000001},
    rate_limit: {:per, 1_152_921_504_607},
    circuit_breaker: {:min_calls, 1_000_001},
    circuit_breaker: {:window, {:calls, 1_000_001}},
    circuit_breaker: {:consecutive, 1_000_001},
    circuit_breaker: {:reset_jitter, 1.0000001},
    retry: {:multiplier, 1_000.5},
    retry: {:backoff, List.duplicate(1, 65)},
    retry: {:backoff, [10, -1]},
    budget: {:ratio, 1.0000001},
    budget: {:min_per_second, 1_000_001},
    start: {:fallback, []},
    start: {:fallback, [{KeyError, nil}]},
    start: {:fallback, [{"KeyError", {:value, 1}}]},
    start: {:fallback, [KeyError: {:value, 1}, oops: 1]},
    start: {:max_ejected, 1.0000001},
    start: {:max_instances, 10_000_001},
    start: {:endpoints, Enum.to_list(0..65_536)},
    start: {:balancer, {:hash, :key}},
    endpoint: {:weight, 1_001},
    half_open: {:probes, 1_001},
    half_open: {:successes, 1_000_001},
    concurrency: {:limit, 1_000_001},
    concurrency: {:queue, 0x1000000}
  ]

  # What a group can not do without.
  @required [rate_limit: [limit: 3, per: 1000], concurrency: [limit: 3]]

  # Given to every option. What an option accepts of these stands in its row.
  defp hostile do
    [
      nil,
      true,
      false,
      :infinity,
      :neg_infinity,
      :nan,
      :no_such_word,
      -1,
      0,
      @huge,
      -@huge,
      -0.1,
      0.0,
      1.5,
      1.0e308,
      -1.0e308,
      "1",
      ~c"chars",
      [],
      [1],
      [1 | 2],
      [KeyError | KeyError],
      [nil],
      [true],
      [:exponential],
      %{},
      {},
      {1, 2},
      {:infinity, []},
      self(),
      make_ref(),
      fn _one, _two, _three -> true end
    ]
  end

  defp refused_by(accepted), do: Enum.reject(hostile(), fn value -> Enum.any?(accepted, &(&1 === value)) end)

  @required_groups Map.new(@required)

  # The options of start/2 with this value at its place, and the path to the place.
  defp placed(:start, option, value), do: {[{option, value}], []}

  # A share of slow calls needs to know what is slow.
  defp placed(:circuit_breaker, :slow_rate, value),
    do: {[circuit_breaker: [slow_call: 100, slow_rate: value]], [:circuit_breaker]}

  defp placed(group, option, value) when group in [:half_open, :reset_backoff] do
    required = if group == :reset_backoff, do: [max: 60_000], else: []
    {[circuit_breaker: [{group, Keyword.put(required, option, value)}]], [:circuit_breaker, group]}
  end

  defp placed(:budget, option, value), do: {[retry: [budget: [{option, value}]]], [:retry, :budget]}

  defp placed(:endpoint, option, value), do: {[endpoints: [{"a", [{option, value}]}]], [:endpoints]}

  defp placed(group, option, value),
    do: {[{group, Keyword.put(Keyword.get(@required, group, []), option, value)}], [group]}

  defp suffix([]), do: ""
  defp suffix(path), do: " (in options #{inspect(path)})"

  # The one refusal with a reason of its own.
  defp refused(service, :concurrency, :wait, :infinity) do
    options = [concurrency: [limit: 3, wait: :infinity]]
    assert_raise ArgumentError, ~r/not allowed/, fn -> ExternalService.start(service, options) end
  end

  defp refused(service, :circuit_breaker, :reset_backoff, []) do
    error = catch_error(ExternalService.start(service, circuit_breaker: [reset_backoff: []]))
    assert %ValidationError{key: :max, keys_path: [:circuit_breaker, :reset_backoff]} = error
  end

  # A name is what a fallback may be, but there is no module that has a function of that name.
  defp refused(service, :start, :fallback, name) when is_atom(name) and not is_boolean(name) do
    assert_raise ArgumentError, ~r/names no public function/, fn -> ExternalService.start(service, fallback: name) end
  end

  defp refused(service, :endpoint, :concurrency, []) do
    error = catch_error(ExternalService.start(service, endpoints: [{"a", concurrency: []}]))
    assert %ValidationError{key: :limit, keys_path: [:endpoints, :concurrency]} = error
  end

  # A group without what it requires is refused for that.
  defp refused(service, :start, group, []) when is_map_key(@required_groups, group) do
    error = catch_error(ExternalService.start(service, [{group, []}]))
    assert %ValidationError{key: :limit, keys_path: [^group]} = error
  end

  defp refused(service, group, option, value) do
    {options, path} = placed(group, option, value)
    error = catch_error(ExternalService.start(service, options))
    assert %ValidationError{key: ^option, keys_path: ^path, value: ^value} = error
    message = Exception.message(error)
    assert String.starts_with?(message, "invalid value for #{inspect(option)} option: expected ")
    assert String.ends_with?(message, ", got: #{inspect(value)}#{suffix(path)}")
    assert ExternalService.state(service) == {:error, :not_found}
  end

  test "every declared option has a row in this table, and every row its option" do
    assert Enum.sort(Options.groups()) == Enum.sort([:call, :insights, :open, :simulate | Map.keys(@rows)])

    for {group, rows} <- @rows do
      assert Enum.sort(Keyword.keys(rows)) == Enum.sort(Keyword.keys(Options.schema(group)))
    end
  end

  test "every declared option has a type and says what it does, and its default is valid", %{service: s} do
    for {group, _} <- @rows, {option, declared} <- Options.schema(group) do
      assert declared[:type], "#{option} has no type"
      assert is_binary(declared[:doc]) and declared[:doc] != "", "#{option} is not documented"

      if Keyword.has_key?(declared, :default) do
        {options, _path} = placed(group, option, declared[:default])
        assert ExternalService.start(s, options) == :ok
      end
    end
  end

  for {group, rows} <- @rows, {option, {accepted, _}} <- rows do
    test "#{inspect(option)} of #{group} refuses what it is not, by name and path, and starts nothing", %{service: s} do
      refused = refused_by(unquote(Macro.escape(accepted)))
      assert length(refused) > 20
      for value <- refused, do: refused(s, unquote(group), unquote(option), value)
      refute s in ExternalService.services()
    end
  end

  for {group, rows} <- @rows, {option, {accepted, values}} <- rows, value <- accepted ++ values do
    value = if match?({_, _, _}, value), do: value, else: Macro.escape(value)

    test "#{inspect(option)} of #{group} accepts #{Macro.to_string(value)}", %{service: s} do
      {options, _path} = placed(unquote(group), unquote(option), unquote(value))
      assert ExternalService.start(s, options) == :ok
      assert s in ExternalService.services()
    end
  end

  for {group, rows} <- @rows, group == :retry, {option, {accepted, _}} <- rows do
    test "#{inspect(option)} is refused by RetryOptions.new/1 and by call/3 as by start/2", %{service: s} do
      ExternalService.start(s)

      for value <- refused_by(unquote(Macro.escape(accepted))) do
        given = [{unquote(option), value}]
        assert %ValidationError{keys_path: []} = error = catch_error(RetryOptions.new(given))
        assert %ValidationError{} = called = catch_error(ExternalService.call(s, given, attempting(1)))
        assert {error.key, called.key} == {unquote(option), unquote(option)}
        assert Exception.message(error) =~ inspect(unquote(option))
      end

      assert attempts() == 0
    end
  end

  for {group, {option, value}} <- @too_high do
    test "#{inspect(option)} of #{group} refuses #{inspect(value, limit: 3)}, just above what it accepts", %{service: s} do
      refused(s, unquote(group), unquote(option), unquote(value))
    end
  end

  for {group, options} <- @required, option <- Keyword.keys(options) do
    test "#{inspect(option)} of #{group} can not be left out", %{service: s} do
      given = Keyword.delete(unquote(options), unquote(option))
      error = catch_error(ExternalService.start(s, [{unquote(group), given}]))
      assert %ValidationError{key: unquote(option), keys_path: [unquote(group)]} = error
      assert Exception.message(error) =~ "required #{inspect(unquote(option))} option not found"
    end
  end

  for {option, accepted, values} <- [
        {:cost, [], [1]},
        {:timeout, [:infinity], [1_000, @long]},
        {:deadline, [:infinity], [60_000, @long]},
        {:fallback, [nil], [{:value, 1}]}
      ] do
    test "#{inspect(option)} is refused by call/3 unless it is what it has to be", %{service: s} do
      ExternalService.start(s)

      for value <- refused_by(unquote(accepted)),
          not (unquote(option) == :fallback and is_atom(value)) or is_boolean(value) do
        given = [{unquote(option), value}]
        assert %ValidationError{key: unquote(option)} = catch_error(ExternalService.call(s, given, attempting(1)))
      end

      assert attempts() == 0

      for value <- unquote(Macro.escape(accepted ++ values)),
          do: assert(ExternalService.call(s, [{unquote(option), value}], fn -> :done end) == :done)
    end
  end

  for {option, accepted, values} <- [
        {:max_calls, [], [1]},
        {:max_attempts, [], [1]},
        {:for, [:infinity], [1]},
        {:clients, [], [1]},
        {:rate, [1.5], [0.1, 1, 1.0e9]},
        {:seed, [0], [1, 0x7FFF_FFFF_FFFF_FFFF]}
      ] do
    test "#{inspect(option)} is refused by simulate/3 unless it is what it has to be" do
      for value <- refused_by(unquote(accepted)) do
        error = catch_error(ExternalService.simulate([], :always_failing, [{unquote(option), value}]))
        assert %ValidationError{key: unquote(option), keys_path: []} = error
      end

      for value <- unquote(accepted ++ values) do
        options = Keyword.merge([max_calls: 3], [{unquote(option), value}])
        assert ExternalService.simulate([], :always_failing, options).calls in 1..3
      end
    end
  end

  test ":budget is the service's: a call that brings one is told so", %{service: s} do
    ExternalService.start(s, retry: [budget: true])
    error = raised(fn -> ExternalService.call(s, [budget: [ratio: 0.5]], attempting(1)) end)
    assert %ArgumentError{} = error
    assert Exception.message(error) =~ "ExternalService.start/2"
    assert attempts() == 0
  end

  test "a list whose elements have to be of a kind is described as such", %{service: s} do
    error = catch_error(ExternalService.start(s, retry: [backoff: :cubic]))
    assert error.message =~ ~r/ or list of 1 to 64, each a non negative integer up to \d+ or function/
  end

  describe "unknown options" do
    test "are named with the valid ones, at every depth", %{service: s} do
      for {options, path, group} <- [
            {[foo: 1], [], :start},
            {[circuit_breaker: [foo: 1]], [:circuit_breaker], :circuit_breaker},
            {[retry: [foo: 1]], [:retry], :retry}
          ] do
        error = catch_error(ExternalService.start(s, options))
        assert %ValidationError{key: [:foo], keys_path: ^path} = error
        valid = inspect(Keyword.keys(Options.schema(group)), limit: :infinity)
        assert Exception.message(error) == "unknown options [:foo], valid options are: #{valid}#{suffix(path)}"
      end

      assert ExternalService.state(s) == {:error, :not_found}
    end

    test "are all named", %{service: s} do
      error = catch_error(ExternalService.start(s, foo: 1, telemetry: :all, bar: 2))
      assert Exception.message(error) =~ "unknown options [:foo, :bar]"
    end

    test "of :name belong to a module that uses the library, not to start/2", %{service: s} do
      assert_raise ValidationError, ~r/unknown options \[:name\]/, fn -> ExternalService.start(s, name: :x) end
    end
  end

  test "options that are no keyword list are refused", %{service: s} do
    for wrong <- [5, nil, %{}, [1], :all, "x", [{"retry", []}]] do
      assert is_exception(raised(fn -> ExternalService.start(s, wrong) end))
    end

    assert ExternalService.state(s) == {:error, :not_found}
  end

  test "a backend's own options may be anything, but those it shares are checked", %{service: s} do
    error = catch_error(ExternalService.start(s, circuit_breaker: [backend: {StandIn, tolerate: -1}]))
    assert %ValidationError{key: :tolerate} = error
    assert hd(error.keys_path) == :circuit_breaker
    assert ExternalService.start(s, circuit_breaker: [backend: {StandIn, anything: -1}]) == :ok
  end

  test "a backend that is no such module is refused by name", %{service: s} do
    for backend <- [:no_such_module, Enum, {Enum, []}] do
      assert_raise ValidationError, ~r/:backend/, fn ->
        ExternalService.start(s, circuit_breaker: [backend: backend])
      end
    end
  end

  test "a RetryOptions struct with impossible values is refused as the options in it would be", %{service: s} do
    for {option, value} <- [base: -1, cap: 0, max_attempts: 0, jitter: 2.0, backoff: :cubic, retry_on: 1] do
      error = raised(fn -> ExternalService.start(s, retry: struct(RetryOptions, [{option, value}])) end)
      assert %ValidationError{key: ^option, keys_path: [:retry], value: ^value} = error
    end

    assert ExternalService.state(s) == {:error, :not_found}
  end

  test "options that fail leave a running service as it was", %{service: s} do
    start_recording(s, retry: [max_attempts: 2], circuit_breaker: [tolerate: 2])
    fail(s)
    catch_error(ExternalService.start(s, retry: [max_attempts: 0]))
    catch_error(ExternalService.start(s, circuit_breaker: [tolerate: :infinity, fault_injection: 0.5]))
    catch_error(ExternalService.start(s, circuit_breaker: [melt: :per_call], retry: [max_attempts: :infinity]))
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
    assert ExternalService.blown?(s)
  end

  test "retries without a bound are refused where only giving up melts", %{service: s} do
    for retry <- [
          [max_attempts: :infinity],
          %RetryOptions{max_attempts: :infinity},
          [max_attempts: :infinity, expiry: :infinity]
        ] do
      assert_raise ArgumentError, ~r/never give up/, fn ->
        ExternalService.start(s, circuit_breaker: [melt: :per_call], retry: retry)
      end
    end

    assert ExternalService.state(s) == {:error, :not_found}
    bounded = [max_attempts: :infinity, expiry: 1000]
    assert ExternalService.start(s, circuit_breaker: [melt: :per_call], retry: bounded) == :ok
    assert ExternalService.start(s, retry: [max_attempts: :infinity]) == :ok
  end
end

defmodule ExternalService.OptionsTest.Defaults do
  # The application environment is everybody's, so nothing runs beside these.
  use ExternalService.Case, async: false

  setup do
    before = Application.fetch_env(:external_service, :defaults)

    on_exit(fn ->
      case before do
        {:ok, defaults} -> Application.put_env(:external_service, :defaults, defaults)
        :error -> Application.delete_env(:external_service, :defaults)
      end
    end)
  end

  defp defaults(defaults), do: Application.put_env(:external_service, :defaults, defaults)

  test "the application environment gives every service its defaults", %{service: s} do
    defaults(retry: [max_attempts: 2], circuit_breaker: [melt: :per_call, backend: StandIn])
    start_recording(s)
    ExternalService.call(s, attempting(:retry))
    assert {attempts(), StandIn.count(:melt)} == {2, 1}
  end

  test "a service's own options stand above them, key by key, and a call's above those", %{service: s} do
    defaults(retry: [max_attempts: 2, base: 7], circuit_breaker: [melt: :per_call, backend: StandIn])
    start_recording(s, retry: [max_attempts: 3], circuit_breaker: [melt: :per_attempt])
    ExternalService.call(s, fn -> :retry end)
    assert {slept(), StandIn.count(:melt)} == {[7, 14], 3}
    ExternalService.call(s, [max_attempts: 4], fn -> :retry end)
    assert slept() == [7, 14, 28]
  end

  test "a service's RetryOptions struct replaces the default retry options", %{service: s} do
    defaults(retry: [max_attempts: 2, base: 7])
    start_recording(s, retry: %RetryOptions{max_attempts: 3})
    ExternalService.call(s, fn -> :retry end)
    assert slept() == [10, 20]
  end

  test "wrong defaults are refused like wrong options", %{service: s} do
    defaults(retry: [max_attempts: 0])
    assert_raise ValidationError, ~r/:max_attempts/, fn -> ExternalService.start(s) end
    defaults(colour: :red)
    assert_raise ValidationError, ~r/\[:colour\]/, fn -> ExternalService.start(s) end
    defaults([:circuit_breaker])
    assert is_exception(raised(fn -> ExternalService.start(s) end))
    assert ExternalService.state(s) == {:error, :not_found}
  end

  test "defaults that change later concern only services started later", %{service: s} do
    start_recording(s, retry: [base: 1])
    defaults(retry: [max_attempts: 2])
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 5
    start_recording(s, retry: [base: 1])
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
  end
end
