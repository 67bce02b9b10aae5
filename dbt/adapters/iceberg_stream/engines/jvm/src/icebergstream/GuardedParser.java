package icebergstream;

import org.antlr.v4.runtime.CharStreams;
import org.antlr.v4.runtime.Token;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.parser.SqlBaseLexer;
import org.apache.spark.sql.catalyst.parser.UpperCaseCharStream;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/** The session's parser, which checks what it has parsed: statements, views and expressions. */
final class GuardedParser implements ParserInterface {
  /** Statements that end with this comment must be queries. */
  private static final String ONLY_A_QUERY = "/* only a query */";
  /** The most views that a statement may read; each of them may read several others. */
  private static final int MOST_VIEWS = 1000;

  // Spark's parser takes minutes and all memory for thousands of nested parentheses.
  private static final int MOST_NESTED = 300;
  private static final int LONGEST = 1_000_000;

  private final SparkSession session;
  private final ParserInterface parser;
  private final ThreadLocal<Integer> views = ThreadLocal.withInitial(() -> 0);

  GuardedParser(SparkSession session, ParserInterface parser) {
    this.session = session;
    this.parser = parser;
  }

  @Override
  public LogicalPlan parsePlan(String sql) throws ParseException {
    requireReadable(sql);
    return checked(sql, parser.parsePlan(sql));
  }

  @Override
  public LogicalPlan parsePlanWithParameters(String sql, ParameterContext parameters) throws ParseException {
    requireReadable(sql);
    return checked(sql, parser.parsePlanWithParameters(sql, parameters));
  }

  @Override
  public LogicalPlan parseQuery(String sql) throws ParseException {
    requireReadable(sql);
    return checked(sql, parser.parseQuery(sql));
  }

  @Override
  public Expression parseExpression(String sql) throws ParseException {
    Expression expression = parser.parseExpression(sql);
    String catalog = StatementGuard.catalogOf(session);
    if (catalog != null) {
      new ParsedPlanCheck(catalog).visit(expression);
    }
    return expression;
  }

  private void requireReadable(String sql) {
    if (StatementGuard.catalogOf(session) == null) {
      return;
    }
    if (sql.length() > LONGEST || nesting(sql) > MOST_NESTED) {
      throw new NotAllowedException(
          "The statement has more than " + LONGEST + " characters, or more than " + MOST_NESTED
              + " nested parentheses.");
    }
  }

  /** Return how deep parentheses are nested, as Spark's lexer finds them. */
  private static int nesting(String sql) {
    SqlBaseLexer lexer = new SqlBaseLexer(new UpperCaseCharStream(CharStreams.fromString(sql)));
    lexer.removeErrorListeners();
    int nested = 0;
    int deepest = 0;
    for (Token token = lexer.nextToken(); token.getType() != Token.EOF; token = lexer.nextToken()) {
      if (token.getType() == SqlBaseLexer.LEFT_PAREN) {
        deepest = Math.max(deepest, ++nested);
      } else if (token.getType() == SqlBaseLexer.RIGHT_PAREN) {
        nested = Math.max(nested - 1, 0);
      }
    }
    return deepest;
  }

  private LogicalPlan checked(String sql, LogicalPlan plan) {
    String catalog = StatementGuard.catalogOf(session);
    if (catalog == null) {
      return plan;
    }
    ParsedPlanCheck check = new ParsedPlanCheck(catalog);
    if (CurrentOrigin.get().objectType().contains("VIEW")) {
      countView();
      check.visit(plan);
      return plan;
    }
    views.set(0);
    check.visitStatement(plan);
    if (sql.endsWith(ONLY_A_QUERY) && !check.isQuery(plan)) {
      throw new NotAllowedException(NotAllowedException.NOT_A_QUERY, "This is not a query.");
    }
    return plan;
  }

  private void countView() {
    views.set(views.get() + 1);
    if (views.get() > MOST_VIEWS) {
      throw new NotAllowedException(
          "The statement reads more than " + MOST_VIEWS + " views of views.");
    }
  }

  @Override
  public TableIdentifier parseTableIdentifier(String sql) throws ParseException {
    return parser.parseTableIdentifier(sql);
  }

  @Override
  public FunctionIdentifier parseFunctionIdentifier(String sql) throws ParseException {
    return parser.parseFunctionIdentifier(sql);
  }

  @Override
  public Seq<String> parseMultipartIdentifier(String sql) throws ParseException {
    return parser.parseMultipartIdentifier(sql);
  }

  @Override
  public StructType parseRoutineParam(String sql) throws ParseException {
    return parser.parseRoutineParam(sql);
  }

  @Override
  public StructType parseTableSchema(String sql) throws ParseException {
    return parser.parseTableSchema(sql);
  }

  @Override
  public DataType parseDataType(String sql) throws ParseException {
    return parser.parseDataType(sql);
  }
}
